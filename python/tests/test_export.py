"""torch.export: an exported module has the gradient that it has eagerly, also from a file and differentiated again."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import F64, values_of

import sternway.torch as st
from sternway._kinds import KINDS

INDICES, OFFSETS = torch.tensor([3, 0, 4, 3, 3, 1]), torch.tensor([0, 2, 2, 3])
TABLE = torch.linspace(0, 3, 20, dtype=F64).view(1, 5, 4)
Q = torch.arange(-10, 10, dtype=torch.int8).view(5, 4)
Function = Callable[..., torch.Tensor]


# Functions of a parameter [5, 4] and of an input [5, 4].
DROP_INS: dict[str, Function] = {
    **{k: lambda w, x, k=k: values_of(getattr(st, k)(w * x, 0)) for k in KINDS},
    **{f"{k} reverse": lambda w, x, k=k: values_of(getattr(st, k)(x * w, -1, reverse=True)) for k in KINDS},
    "lerp": lambda w, x: st.lerp(x, w, 0.25),
    "lerp with a tensor": lambda w, x: st.lerp(x, w[0], x[:, :1] * w[1:2]),
    **{
        f"embedding_bag {mode}": lambda w, x, mode=mode: st.embedding_bag(INDICES, w * x, OFFSETS, mode=mode)
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag of rows": lambda w, x: st.embedding_bag(INDICES.view(3, 2), w * x, mode="sum", padding_idx=3),
    "embedding_bag with weights": lambda w, x: st.embedding_bag(
        INDICES, w, OFFSETS, mode="sum", per_sample_weights=x.flatten()[:6], include_last_offset=False
    ),
    "embedding": lambda w, x: st.embedding(INDICES.to(x.device).view(3, 2), w * x, padding_idx=3),
    "rope": lambda w, x: st.rope((w * x).view(1, 1, 5, 4), pairing="half"),
    "rope with learned tables": lambda w, x: st.rope(x.view(1, 1, 5, 4), cos=w[:, :2].cos(), sin=w[:, 2:].sin()),
    "apply_rotary_pos_emb": lambda w, x: torch.cat(
        st.apply_rotary_pos_emb(
            (w * x).view(1, 1, 5, 4),
            w.view(1, 1, 5, 4),
            TABLE.to(x.device).cos(),
            TABLE.to(x.device).sin(),
            pairing="interleaved",
        )
    ),
    "fake_quantize_per_token": lambda w, x: st.fake_quantize_per_token(
        w * x, w[:, :1].abs() / 4 + 0.1, w[:, 2], quant_min=-2, quant_max=3
    ),
    "dequantize_per_token": lambda w, x: st.dequantize_per_token(Q.to(x.device), w[:, 0] * x[:, 0], x[:, 1:2] * w[:, 1:2]),
    "accelerate": lambda w, x: accelerated(w, x),
}
ALL = pytest.mark.parametrize("name", DROP_INS)
STRICT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])


@st.accelerate()
def accelerated(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.cumprod(w, 0).lerp(x, 0.5).cummax(1).values


class Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(5, 4, generator=generator, dtype=F64))
        with torch.no_grad():
            self.weight[1:3, 1] = 0  # products whose gradient torch divides for

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight, x)


def exported(module: Module, x: torch.Tensor, strict: bool, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.export.export(module, (x,), strict=strict, **options)


def gradients(module: Any, x: torch.Tensor, create_graph: bool = False) -> tuple[torch.Tensor, ...]:
    (weight,) = module.parameters()
    return torch.autograd.grad(module(x).square().sum(), (weight, x), create_graph=create_graph, allow_unused=True)


def sample(seed: int = 1, rows: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator, dtype=F64).requires_grad_()


@STRICT
@ALL
def test_the_gradient_survives(name: str, strict: bool) -> None:
    """Of a parameter and of an input, to the bit, for other numbers than those at the export, and of the gradient again."""
    module = Module(DROP_INS[name])
    program = exported(module, sample(), strict)
    graph, x = program.module(), sample(7)
    assert torch.equal(graph(x), module(x))
    for ours, eager in zip(gradients(graph, x), gradients(module, x), strict=True):
        assert (ours is None) == (eager is None)
        assert ours is None or torch.equal(ours, eager)
    second = []
    for each in (graph, module):
        (weight,) = each.parameters()
        first = gradients(each, x, create_graph=True)[0]
        assert first.requires_grad
        second.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*second)


@ALL
def test_from_a_file(name: str) -> None:
    module, file = Module(DROP_INS[name]), io.BytesIO()
    torch.export.save(exported(module, sample(), strict=False), file)
    file.seek(0)
    graph, x = torch.export.load(file).module(), sample(7)
    for ours, eager in zip(gradients(graph, x), gradients(module, x), strict=True):
        assert ours is None or torch.equal(ours, eager)


@STRICT
def test_values_that_torchs_formula_makes_nan(strict: bool) -> None:
    """Of a product beyond the range the gradient is finite, as eagerly."""
    module = Module(lambda w, x: st.cumprod(w[:3, 0].float() * x[:3, 0].float(), 0))
    x = torch.zeros(5, 4, dtype=F64, requires_grad=True)
    graph = exported(module, x, strict).module()
    with torch.no_grad():
        for (weight,) in (module.parameters(), graph.parameters()):
            weight[:3, 0] = 1
        x[:3, 0] = torch.tensor([1e30, 1e30, 1e-30])
    dy = torch.tensor([1.0, 0.0, 0.0])
    for each in (module, graph):
        (dx,) = torch.autograd.grad(each(x), x, dy)
        assert dx[:3, 0].tolist() == [1.0, 0.0, 0.0]


@STRICT
def test_sizes_that_change(strict: bool) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    module = Module(lambda w, x: st.lerp(st.cumprod(x, 0), w[0], w[1]))
    graph = exported(module, sample(), strict, dynamic_shapes=({0: rows},)).module()
    for n in (2, 5, 33):
        x = sample(n, n)
        for ours, eager in zip(gradients(graph, x), gradients(module, x), strict=True):
            assert torch.equal(ours, eager)


@STRICT
def test_a_sparse_gradient(strict: bool) -> None:
    module = Module(lambda w, x: st.embedding_bag(INDICES, w, OFFSETS, mode="sum", sparse=True) * x[:4])
    graph, x = exported(module, sample(), strict).module(), sample(7)
    ours, eager = gradients(graph, x)[0], gradients(module, x)[0]
    assert ours.layout == eager.layout == torch.sparse_coo
    assert torch.equal(ours.to_dense(), eager.to_dense())


@STRICT
def test_decompositions_keep_the_operators(strict: bool) -> None:
    module = Module(DROP_INS["cumprod"])
    program = exported(module, sample(), strict).run_decompositions({})
    graph, x = program.module(), sample(7)
    for ours, eager in zip(gradients(graph, x), gradients(module, x), strict=True):
        assert torch.equal(ours, eager)


def test_offsets_are_checked_when_the_program_runs() -> None:
    """Their values are not known before."""

    class Bags(torch.nn.Module):
        def forward(self, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return st.embedding_bag(INDICES, weight, offsets, mode="max", include_last_offset=True)

    weight = torch.randn(5, 4)
    graph = torch.export.export(Bags(), (weight, torch.tensor([0, 2, 6]))).module()
    assert graph(weight, torch.tensor([0, 4, 6])).shape == (2, 4)
    for offsets, text in (([0, 2, 5], "up to the end of input"), ([0, 7, 6], "in rising order")):
        with pytest.raises(ValueError, match=text):
            graph(weight, torch.tensor(offsets))


def test_onnx_gets_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no others, and has no backward."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    for name in ("cumsum", "lerp", "embedding_bag sum"):
        program = exported(Module(DROP_INS[name]), sample(), strict=False)
        assert not any("sternway" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", ["scan", "scan pair", "lerp", "lerp tensor", "embedding_bag", "embedding_bag max"])
def test_opcheck(name: str, device: str) -> None:
    """The forwards as operators: schema, fake, registration and gradient agree."""
    x = torch.rand(5, 4, device=device).T.requires_grad_()
    table, w = (torch.rand(s, device=device, requires_grad=True) for s in ((5, 4), (6,)))
    indices, offsets = INDICES.to(device), OFFSETS.to(device)
    ops = torch.ops.sternway
    operator, arguments = {
        "scan": (ops.scan, (x, 0, "cumprod", True)),
        "scan pair": (ops.scan, (x, 1, "cummax", False)),
        "lerp": (ops.lerp, (x, x.detach()[:, :1], None, 0.25)),
        "lerp tensor": (ops.lerp, (x, x.detach()[:1], torch.rand(4, 5, device=device, requires_grad=True), 0.0)),
        "embedding_bag": (ops.embedding_bag, (table, w, indices, offsets, 1, "sum", False, False, False)),
        "embedding_bag max": (ops.embedding_bag, (table, None, indices, offsets, None, "max", False, False, False)),
    }[name]
    torch.library.opcheck(operator.default, arguments)


@pytest.mark.gpu
@STRICT
@ALL
def test_on_a_gpu(name: str, strict: bool) -> None:
    if "bag" in name:
        pytest.skip("indices of these cases are on the CPU")
    module = Module(DROP_INS[name]).cuda()
    x = sample().detach().cuda().requires_grad_()
    graph = exported(module, x, strict).module()
    for ours, eager in zip(gradients(graph, x), gradients(module, x), strict=True):
        assert ours is None or torch.equal(ours, eager)
