"""The scans of sternway.torch: torch's values and names, gradients of gradients, layouts, vmap, autocast."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch
from families.scan import truth as scan_truth
from support import DIRECTIONS, F16, F32, F64, FLOATS, check, gradcheck, gradgradcheck, values_of
from torch.utils.flop_counter import FlopCounterMode

import sternway as sw
import sternway.torch as st
from sternway._kinds import EXTREMA, KINDS, WITH_KERNELS

INF = float("inf")
SCANS = pytest.mark.parametrize("kind", KINDS)


def leaf(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=F64).to(device, dtype).requires_grad_()


@SCANS
def test_names_values_and_types_are_torchs(kind: str, dtype: torch.dtype, device: str) -> None:
    parameters = inspect.signature(getattr(st, kind)).parameters
    assert list(parameters) == ["x", "dim", "reverse", "exclusive", "cu_seqlens"]
    assert parameters["reverse"].kind is inspect.Parameter.KEYWORD_ONLY
    for shape in ((), (5,), (0, 3), (4, 0), (3, 4, 5)):
        x = leaf(shape, dtype, device)
        ours, theirs = getattr(st, kind)(x, -1), getattr(torch, kind)(x, -1)
        assert type(ours) is type(theirs)
        for a, b in zip(*((y,) if kind not in EXTREMA else y for y in (ours, theirs)), strict=True):
            assert a.dtype == b.dtype
            assert a.stride() == b.stride()
            if dtype in (F32, F64):  # torch's sums of 16 bits are rounded after each term on CUDA
                torch.testing.assert_close(a, b)
        assert torch.autograd.grad(values_of(ours).sum(), x)[0].shape == shape


@SCANS
def test_the_forward_is_that_of_a_plan(kind: str, device: str) -> None:
    """With and without a gradient, by name and inside accelerate(); torch's with forward=False."""
    x = torch.randn(3, 700, device=device).bfloat16()
    plan = getattr(sw, kind)(x, -1)
    want = plan[0] if kind in EXTREMA else plan
    for leaf_or_not in (x, x.clone().requires_grad_()):
        assert torch.equal(values_of(getattr(st, kind)(leaf_or_not, -1)), want)
        with st.accelerate():
            assert torch.equal(values_of(getattr(torch, kind)(leaf_or_not, -1)), want)
        with st.accelerate(forward=False):
            theirs = values_of(getattr(torch, kind)(leaf_or_not, -1))
        assert torch.equal(theirs, values_of(getattr(torch, kind)(x, -1)))
    if kind in EXTREMA:
        assert torch.equal(getattr(st, kind)(x, -1).indices, plan[1])


def test_what_torchs_forward_gets_wrong(device: str) -> None:
    x = torch.tensor([1e30, 1e30, 1e-30], device=device, requires_grad=True)
    y = st.cumprod(x, 0)
    assert y[1].isinf()
    torch.testing.assert_close(y[2], x.detach()[0])
    assert st.cumsum(torch.ones(65536, device=device, dtype=torch.bfloat16), 0)[-1] == 65536


@SCANS
@DIRECTIONS
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_of_gradients(kind: str, dim: int, reverse: bool, device: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return values_of(getattr(st, kind)(x, dim, reverse=reverse))

    x = leaf((3, 4, 2), F64, device)
    assert gradcheck(function, x)
    assert gradgradcheck(function, x)


def test_second_gradient_of_a_product_with_zeros(device: str) -> None:
    x = torch.tensor([2.0, 0.0, 3.0, 0.0, 5.0], dtype=F64, device=device, requires_grad=True)
    assert gradcheck(lambda x: st.cumprod(x, 0), x)
    assert gradgradcheck(lambda x: st.cumprod(x, 0), x)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "row",
    [[-INF, -INF, 1.0, 2.0, 0.5], [1.0, -INF, 2.0], [-INF] * 3, [-INF, 1000.0, 1001.0, -INF, -1000.0], [0.3, -1.0, 2.0]],
    ids=str,
)
@pytest.mark.parametrize("zeros", [False, True])
def test_second_gradient_of_logcumsumexp(row: list[float], zeros: bool, reverse: bool, device: str) -> None:
    """With p the softmax of each prefix, dx = p' dy; the gradients of v dx are p v, and v dx - p' (dy p v)."""
    x = torch.tensor(row, dtype=F64)
    prefixes = [torch.softmax(x[: i + 1], 0).nan_to_num(0) for i in range(len(x))]
    p = torch.stack([torch.cat((prefix, x.new_zeros(len(x) - len(prefix)))) for prefix in prefixes])
    dy, v = torch.randn(2, len(x), dtype=F64)
    if zeros:
        dy[1::2] = v[::2] = 0
    want = p @ v, v * (p.T @ dy) - p.T @ (dy * (p @ v))

    def turned(t: torch.Tensor) -> torch.Tensor:
        return (t.flip(0) if reverse else t).to(device)

    leaves = turned(x).requires_grad_(), turned(dy).requires_grad_()
    (dx,) = torch.autograd.grad(st.logcumsumexp(leaves[0], 0, reverse=reverse), leaves[0], leaves[1], create_graph=True)
    for out, truth in zip(torch.autograd.grad(dx, leaves[::-1], turned(v)), want, strict=True):
        torch.testing.assert_close(turned(out.cpu()).cpu(), truth)


def test_second_gradient_of_logcumsumexp_far_from_zero(device: str) -> None:
    """Means of v, to the precision of its dtype, not of x's."""
    x = torch.full((2,), 100.0, dtype=torch.bfloat16, device=device, requires_grad=True)
    dy = torch.ones_like(x, requires_grad=True)
    (dx,) = torch.autograd.grad(st.logcumsumexp(x, 0), x, dy, create_graph=True)
    (means,) = torch.autograd.grad(dx, dy, torch.full_like(x, 0.3))
    assert torch.equal(means, torch.full_like(x, 0.3))


@SCANS
def test_third_gradients(kind: str, device: str) -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        y = values_of(getattr(st, kind)(x, 0))
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]

    assert gradgradcheck(slope, leaf((4,), F64, device))


@SCANS
def test_the_gradient_lies_as_x_does(kind: str, device: str) -> None:
    """The bits of a contiguous x on the CPU; on a GPU the layout chooses the kernel, and with it the order of the sums."""
    descriptor = sw.ScanBackwardDescriptor(kind=kind, shape=(6, 5, 4), dtype=F32, dim=1)
    dy = torch.randn(6, 5, 4, device=device)
    for x in (leaf((4, 5, 6), F32, device).detach().permute(2, 1, 0), torch.randn(6, 4, 5, device=device).mT):
        x = x.requires_grad_()
        (dx,) = torch.autograd.grad(values_of(getattr(st, kind)(x, 1)), x, dy)
        assert dx.stride() == x.stride()
        dense = x.detach().contiguous().requires_grad_()
        (other,) = torch.autograd.grad(values_of(getattr(st, kind)(dense, 1)), dense, dy)
        assert device != "cpu" or torch.equal(dx, other)
        truth = scan_truth(descriptor, {"dy": dy, "x": x})["dx"]
        for found in (dx, other):
            check(f"{kind} dx", found, truth)


@SCANS
def test_the_gradient_of_any_scan_lies_as_x_does(kind: str, device: str) -> None:
    """Of packed and exclusive scans too, whatever the layout of dy, and of a call that a dispatch mode sees."""
    bounds = torch.tensor([0, 2, 5], device=device)
    for options in [{}, {"cu_seqlens": bounds}] + [{"exclusive": True}] * (kind not in EXTREMA):
        for x in (torch.randn(4, 5, device=device), torch.randn(5, 4, device=device).T):
            for dy in (torch.randn(4, 5, device=device), torch.randn(5, 4, device=device).T, torch.ones(1, 5, device=device)):
                for mode in (contextlib.nullcontext(), FlopCounterMode(display=False)):
                    x = x.detach().requires_grad_()
                    with mode:
                        y = values_of(getattr(st, kind)(x, 1, **options))
                    (dx,) = torch.autograd.grad(y, x, dy.expand(4, 5))
                    assert dx.stride() == x.stride()


@SCANS
@pytest.mark.parametrize("where", [0, 1, 2])
def test_vmap(kind: str, where: int, device: str) -> None:
    x = leaf((3, 4, 5), F32, device).detach()
    for dim in (0, 1, -1):
        got = torch.vmap(lambda row, dim=dim: values_of(getattr(st, kind)(row, dim)), in_dims=where)(x)
        rows = [values_of(getattr(st, kind)(row, dim)) for row in x.unbind(where)]
        torch.testing.assert_close(got, torch.stack(rows))
    for reverse in (False, True):  # of numbers
        slope = torch.func.grad(lambda v, reverse=reverse: values_of(getattr(st, kind)(v, 0, reverse=reverse)).square())
        torch.testing.assert_close(torch.vmap(slope)(x[:, 0, 0]), 2 * x[:, 0, 0])
        torch.testing.assert_close(torch.vmap(torch.func.grad(slope))(x[:, 0, 0]), torch.full((3,), 2.0, device=device))


@SCANS
def test_dtypes_without_a_gradient_of_ours_stay_with_torch(kind: str, device: str) -> None:
    whole = torch.tensor([3, 1, 2], device=device)
    if kind != "logcumsumexp":
        ours, theirs = values_of(getattr(st, kind)(whole, 0)), values_of(getattr(torch, kind)(whole, 0))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    if kind in ("cumsum", "cumprod"):
        z = torch.randn(3, dtype=torch.complex64, device=device, requires_grad=True)
        want = torch.autograd.grad(getattr(torch, kind)(z, 0).abs().sum(), z)[0]
        assert torch.equal(torch.autograd.grad(getattr(st, kind)(z, 0).abs().sum(), z)[0], want)


@SCANS
@pytest.mark.parametrize("n", [8, 40, 1000, 40000])  # rows of a warp, of some warps and of some tiles
def test_expanded_gradient_is_not_copied(kind: str, dtype: torch.dtype, n: int, device: str) -> None:
    """A sum hands on one number, of everything or of each row, and the bits are those of numbers that lie side by side."""
    x = leaf((7, n), dtype, device)
    y = values_of(getattr(st, kind)(x, 1))
    numbers = [torch.ones(1, 1, dtype=dtype, device=device)]
    if n >= 1000:  # on GPUs other threads do short rows that differ
        numbers.append(torch.randn(7, 1, device=device).to(dtype))
    for dy in (number.expand(7, n) for number in numbers):
        expanded, dense = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in (dy, dy.contiguous()))
        assert torch.equal(expanded, dense)


@SCANS
def test_dim_out_of_range_is_torchs_error(kind: str) -> None:
    with pytest.raises(IndexError):
        getattr(st, kind)(torch.ones(3), 1)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16], ids=str)
def test_autocast_to_float32(dtype: torch.dtype, device: str) -> None:
    """A forward that autocast widens gets a dy wider than x; the gradient has x's dtype."""
    x = leaf((4, 33), dtype, device)
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        y = st.cumprod(x, 1)
        (dx,) = torch.autograd.grad(y.float().sum(), x)
    assert dx.dtype == dtype


def test_every_float_is_ours() -> None:
    """No floating dtype is left to torch without a word."""
    for dtype in FLOATS:
        y = st.cumsum(torch.ones(3, dtype=dtype, requires_grad=True), 0)
        assert type(y.grad_fn).__name__.startswith("_Scan")


@pytest.mark.parametrize("kind", WITH_KERNELS)
def test_our_forward_runs_under_autocast(kind: str, dtype: torch.dtype, device: str) -> None:
    """Alone finds torch's forward under autocast, which rounds more than once; the dtype is that of torch's policy."""
    x = torch.randn(5, 300, device=device).to(dtype).requires_grad_()
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        theirs, ours = getattr(torch, kind)(x, 1), getattr(st, kind)(x, 1)
        with st.accelerate():
            inside = getattr(torch, kind)(x, 1)
    theirs, ours, inside = (y[0] if kind == "cummax" else y for y in (theirs, ours, inside))
    want = getattr(st, kind)(x.to(theirs.dtype), 1)
    want = want[0] if kind == "cummax" else want
    for y in (ours, inside):
        assert y.dtype is theirs.dtype
        assert torch.equal(y, want)
        assert torch.autograd.grad(y.sum(), x)[0].dtype is dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert getattr(st, kind)(x.to("meta"), 1) is not None
