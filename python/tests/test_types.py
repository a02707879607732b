"""The types of the public functions, as a type checker sees them in code that uses the package.

These tests alone find a documented call that a checker refuses, such as ``@st.accelerate()``, and a misspelt keyword, option or
dtype that it lets through. `mypy` on the package, which ``make lint`` runs, sees no calls of users.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sternway as sw
import sternway.torch as st

for _name in ("mypy", "jax", "ml_dtypes"):
    pytest.importorskip(_name, reason=f"{_name} is not installed")

IMPORTS = """
import dataclasses
from typing import Any
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
import sternway as sw
import sternway.jax as sj
import sternway.torch as st
import sternway.torch.distributed as std
t, n, i, j = torch.ones(3), np.ones(3), torch.tensor([0, 1]), jnp.ones(3)
"""

GOOD = """
@st.accelerate()
def f1(x: torch.Tensor) -> torch.Tensor: return x.cumsum(0)
@st.accelerate
def f2(x: torch.Tensor, *, dim: int = 0) -> torch.Tensor: return x.cumsum(dim)
@st.accelerate(forward=False)
async def f3(x: torch.Tensor) -> torch.Tensor: return x.cumsum(0)
@st.accelerate
async def f4(x: torch.Tensor) -> torch.Tensor: return x.cumsum(0)
class Model(torch.nn.Module):
    @st.accelerate
    def forward(self, x: torch.Tensor) -> torch.Tensor: return x.cumsum(0)
    @staticmethod
    @st.accelerate()
    def twice(x: torch.Tensor) -> torch.Tensor: return x.cumsum(0)
with st.accelerate(forward=False):
    y1: torch.Tensor = f2(f1(t), dim=0)
with st.accelerate() as region:
    y2: torch.Tensor = Model.twice(t)
async def wait() -> torch.Tensor: return await f3(await f4(t))
def after() -> int:
    with st.accelerate():
        return 1

s1: torch.Tensor = st.cumsum(t, 0, reverse=True)
s2: torch.Tensor = st.cumsum(x=t, dim=0)
s3: torch.Tensor = st.cumprod(input=t, axis=-1, dtype=torch.float64)
s4: torch.Tensor = st.cumprod(t, axis=-1, out=torch.ones(3))
s5: torch.Tensor = st.logcumsumexp(input=t, dim=0, out=t)
s6: torch.Tensor = st.cummax(t, 0).values
s7: torch.return_types.cummin = st.cummin(t, dim=0, out=(t, i))
values, indices = st.cummin(input=t, axis=0, reverse=False)
s8: torch.Tensor = st.lerp(input=t, end=t, weight=0.5, out=None)
s9: torch.Tensor = st.lerp(t, t, t)
e1: torch.Tensor = st.Embedding(3, 2)(i)
e2: torch.Tensor = st.EmbeddingBag(3, 2, mode="max", dtype=torch.float64)(i, offsets=i)
e3: st.EmbeddingBag = st.EmbeddingBag.from_pretrained(torch.ones(3, 2), mode="sum")
e10 = st.EmbeddingBag(3, 2, optimizer="adagrad", lr=torch.ones(()), optimizer_options={"eps": 1e-8})
e11: st.Embedding = st.Embedding.from_pretrained(torch.ones(3, 2), optimizer="rowwise_adagrad", lr=0.1)
if e10.optimizer is not None:
    torch.optim.lr_scheduler.StepLR(e10.optimizer, 1)
e4: torch.Tensor = st.embedding_bag(i, torch.ones(3, 2), i, mode="sum")
e5: torch.Tensor = st.embedding(i, torch.ones(3, 2))
r1: torch.Tensor = st.rope(t, pairing="half", angle="float32", layout="thd", columns="neighbours")
r2, r3 = st.apply_rotary_pos_emb(t, t, t, t, pairing="interleaved", columns="halves")
q1: torch.Tensor = st.dequantize_per_token(t, t, dtype=torch.float16)
q2: torch.Tensor = st.dequantize(t, t, None, torch.float16, qdtype="int4")
p1: torch.Tensor = std.positions(4, order="zigzag")

a1: np.ndarray[Any, Any] = sw.cumsum(n)
a2: npt.NDArray[np.float64] = sw.logcumsumexp(n, -1, reverse=True, out=np.empty(3))
a3: torch.Tensor = sw.cumprod(t)
a4: torch.Tensor = sw.cumsum_backward(t)
a5: torch.Tensor = sw.cumprod_backward(t, t, out=t)
a6: npt.NDArray[np.float64] = sw.cummax_backward(n, indices=np.arange(3), tie="first")
a7: torch.Tensor = sw.rope(t, positions=i, layout="thd")
a8: torch.Tensor = sw.embedding_backward(t, i, num_embeddings=3)
a9: torch.Tensor = sw.embedding_bag_backward(t, i, i, num_embeddings=3, mode="mean")
m1: tuple[torch.Tensor, torch.Tensor] = sw.cummax(t)
m2: torch.Tensor = sw.cummin(t, out=t)
m3: tuple[torch.Tensor, torch.Tensor] = sw.cummin(t, out=(t, i))
top, where = sw.cummax(n, tie="first")
m4: npt.NDArray[np.float64] = top[where]
m5: npt.NDArray[np.int64] = where
l1, l2 = sw.lerp_backward(t, 0.5)
l3: tuple[torch.Tensor, ...] = sw.lerp_backward(t, t, t, t, needs=("dweight", "da"))
l4: torch.Tensor = l1 + l2
d1: torch.Tensor = sw.dequantize_per_token(i, t, dtype="bfloat16")
d2: npt.NDArray[np.float32] = sw.dequantize_per_token(np.ones((2, 3), np.int8), np.ones(2, np.float32))
d3: torch.Tensor = sw.dequantize_per_token_backward(t, t)
d4, d5 = sw.dequantize_per_token_backward(t, t, q=i)
d6: torch.Tensor = d4 + d5
k1: torch.Tensor = sw.fake_quantize_per_token(t, t, quant_min=-8, quant_max=7)
k2, k3, k4 = sw.fake_quantize_per_token_backward(t, t, t, t, quant_min=-8, quant_max=7)
k5: torch.Tensor = k2 + k3
b1: npt.NDArray[np.float32] = sw.dequantize(np.ones((2, 3), np.int8), np.ones((), np.float32), qdtype="int8")
b2: torch.Tensor = sw.dequantize(i, t, None, "bfloat16")
b3: torch.Tensor = sw.dequantize_backward(t, t)
b4, b5 = sw.dequantize_backward(t, t, q=i, qdtype="uint4")
b6: torch.Tensor = b4 + b5
b7, b8, b9 = sw.fake_quantize_backward(t, t, t, t, quant_min=-8, quant_max=7)
b10: torch.Tensor = b7 + sw.fake_quantize(b8, t, quant_min=-8, quant_max=7)
u1, u2, u3 = sw.unique_rows(np.arange(3), 3)
u4: npt.NDArray[np.int64] = u1
u5: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = sw.unique_rows(i, 3)

sw.LerpBackwardDescriptor((3,), "float32", weight=0.2)
sw.LerpBackwardDescriptor(t.shape, t.dtype)
sw.LerpBackwardDescriptor(n.shape, n.dtype)
sw.LerpBackwardDescriptor([3], np.float32)
sw.LerpBackwardDescriptor((3,), np.dtype("float16"))
sw.LerpBackwardDescriptor((3,), ml_dtypes.bfloat16)
scan = sw.ScanDescriptor("cummax", shape=(3,), dtype="float64", tie="first")
name: str = dataclasses.replace(scan, dtype=torch.float16).kind
sw.RopeDescriptor(1, 1, 2, 2, "bfloat16", pairing="half", angle="float32", layout="bshd")
sw.DequantizePerTokenDescriptor((2, 3), "float16", qdtype="uint8", scale_dtype="float32")
sw.DequantizeDescriptor((2, 4), "float16", scale_shape=(2, 2), qdtype="uint8")
sw.EmbeddingBagBackwardDescriptor(3, 2, 1, 2, "float32", mode="max", index_dtype="int32", offset_dtype=torch.int64)
plan = sw.ScanPlan.select(scan, torch.device("cpu"))
plan.run(x=n, y=np.empty(3), workspace=None)
kind: str = plan.descriptor.kind

j1: jax.Array = sj.cumsum(j, 0, reverse=True)
j2: jax.Array = sj.cummax(n, tie="first")
j3, j4 = sj.cummin(j, return_indices=True)
j5: jax.Array = sj.lerp(j, n, 0.5) + j4
j6: jax.Array = sj.rope(j, pairing="half", layout="thd")
j7: jax.Array = sj.embedding_bag(j, j, mode="mean")
j8: jax.Array = sj.dequantize_per_token(j, j, dtype=jnp.float32)
j10: jax.Array = sj.selective_scan(j, j, j, j, j, delta_softplus=True)
j11, j12 = sj.selective_scan(j, j, j, n, n, None, j, None, True, True, cu_seqlens=n)
j9: jax.Array = sw.cumsum(j, out=j)
"""

BAD = """
st.accelerate(True)
st.accelerate(fwd=True)
f1(3)
f2(t, dims=0)
Model().forward(3)
st.cumsum(t, "0")
st.cumsum(t, 0, revers=True)
st.cumsum(t)
st.cumsum(t, 0, axis=0)
st.cumsum([1.0], 0)
st.cumprod(t, 0, dtype="float32")
st.cumprod(t, 0.5)
st.logcumsumexp(t, 0, True)
st.logcumsumexp(t, 0, dtype=torch.float32)
st.cummax(t, 0, dim=1)
st.cummax(t, 0, out=t)
st.cummin(inputs=t, dim=0)
st.cummin(t, 0).value
st.lerp(t, t)
st.lerp(t, t, "0.5")
st.lerp(t, t, 0.5, weigth=1)
st.Embedding(3, 2)(3)
st.Embedding(3, 2)(i, i)
st.Embedding("3", 2)
st.EmbeddingBag(3, 4, mode="avg")
st.EmbeddingBag(3, 4, modes="sum")
st.EmbeddingBag(3, 4, optimizer="lion")
st.Embedding(3, 4, optimzer="sgd")
st.EmbeddingBag(3, 4)("x")
st.EmbeddingBag.from_pretrained(t, mode="avg")
st.embedding_bag(i, t, i, mode="avg")
st.embedding_bag(i, t, i, mood="sum")
st.embedding(i, t, sprase=True)
st.rope(t, pairing="neox")
st.rope(t, angle="float16")
st.rope(t, layout="sbhd")
st.rope(t, columns="neighbors")
st.apply_rotary_pos_emb(t, t, t, t, pairing="full")
st.dequantize_per_token(t, t, dtype="float32")
std.positions(4, order="zig")
std.ShardedEmbeddingBag(3, 2, sharding="rows")
std.ShardedEmbeddingBag(3, 2, mode="avg")
c1: torch.Tensor = sw.cumsum(n)
c2: npt.NDArray[np.float64] = sw.cumprod(t)
c3: tuple[torch.Tensor, torch.Tensor] = sw.cummax(n)
c4: npt.NDArray[Any] = sw.lerp_backward(t, 0.5)[0]
c5: npt.NDArray[Any] = sw.rope_backward(t)
c6: torch.Tensor = sw.cummax(t)
sw.cumsum([1.0, 2.0])
sw.cumsum(t, "0")
sw.cumsum(t, revers=True)
sw.cummax(t, tie="any")
sw.cummin_backward(t, t, tie="any")
sw.cumprod_backward(t)
sw.cumprod_backward(t, "x")
sw.rope(t, layout="sbhd")
sw.rope_backward(t, pairing="neox")
sw.lerp_backward(t, 0.5, needs=("dx",))
sw.lerp_backward(t, "0.5")
sw.embedding_bag_backward(t, i, i, num_embeddings=3, mode="avg")
sw.embedding_backward(t, i)
sw.dequantize_per_token(i, t, dtype="int4")
sw.fake_quantize_per_token(t, t, quant_min=0)
sw.dequantize(i, t, qdtype="int16")
sw.FakeQuantizeDescriptor((2, 4), "float16", -8, 7, scale_shape=2)
sw.LerpBackwardDescriptor((3,), "flaot32", weight=0.2)
sw.LerpBackwardDescriptor((3,), float)
sw.LerpBackwardDescriptor((3,), n)
sw.LerpBackwardDescriptor((3,), "float32", weigth=0.2)
sw.LerpBackwardDescriptor(3, "float32")
sw.ScanDescriptor("cumsun", (3,), "float32")
sw.ScanBackwardDescriptor("cummax", (3,), "float32", tie="frist")
sw.RopeDescriptor(1, 1, 2, 2, "float32", pairing="neox")
sw.RopeBackwardDescriptor(1, 1, 2, 2, "float32", angle="float16")
sw.RopeBackwardDescriptor(1, 1, 2, 2, "float32", layout="sbhd")
sw.DequantizePerTokenDescriptor((2, 3), "float16", qdtype="int2")
sw.DequantizePerTokenBackwardDescriptor((2, 3), "float16", scale_dtype="f32")
sw.FakeQuantizePerTokenDescriptor((2, 3), "half", quant_min=0, quant_max=1)
sw.EmbeddingBagBackwardDescriptor(3, 2, 1, 2, "float32", mode="avg")
sw.EmbeddingBackwardDescriptor(3, 2, 1, "float32", index_dtype="int46")
sw.UniqueRowsDescriptor(9, 5, index_dtype="int")
scan.knd
plan.run(x="x")
plan.run(x=n, y=[0.0])
sw.ScanPlan.select(sw.LerpBackwardDescriptor((3,), "float32"))
sw.PlanPreference(determinstic=True)
x1: torch.Tensor = sj.cumsum(j)
x2: jax.Array = sj.cummax(j, return_indices=True)
x3: jax.Array = sj.selective_scan(j, j, j, j, j, return_last_state=True)
sj.cumsum(t)
sj.cumsum(j, revers=True)
sj.cummax(j, tie="any")
sj.rope(j, layout="sbhd")
sj.embedding_bag(j, j, mode="avg")
sj.dequantize_per_token(j, j, dtype="f32")
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, root: Path) -> tuple[str, dict[int, str]]:
    """The source of one program, GOOD and then BAD, and the errors of ``mypy --strict`` in it by line.

    It shares the cache of ``make lint``, which holds the types of torch and JAX for Python 3.10.
    """
    file: Path = tmp_path_factory.mktemp("types") / "use.py"
    text = IMPORTS + GOOD + BAD
    file.write_text(text)
    cache = ["--python-version", "3.10", "--cache-dir", str(root / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *cache, file.name]
    source = Path(sw.__file__).parents[1]  # of an editable installation, which mypy does not find
    found = {} if source.name == "site-packages" else {"MYPYPATH": str(source)}
    run = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, env={**os.environ, **found})
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = re.findall(r"^use\.py:(\d+): error: (.*)", run.stdout, re.MULTILINE)
    return text, {int(line): message for line, message in found}


def test_documented_calls_are_accepted(checked: tuple[str, dict[int, str]]) -> None:
    text, errors = checked
    last = (IMPORTS + GOOD).count("\n")
    lines = text.splitlines()
    assert {lines[line - 1]: message for line, message in errors.items() if line <= last} == {}


def test_wrong_calls_are_reported(checked: tuple[str, dict[int, str]]) -> None:
    text, errors = checked
    first = (IMPORTS + GOOD).count("\n")
    lines = text.splitlines()
    assert [lines[k] for k in range(first, len(lines)) if lines[k] and k + 1 not in errors] == []


def test_signatures_are_those_of_the_documentation() -> None:
    """help() and editors show the arguments that docstrings explain, not the ways that torch's keywords are taken."""
    assert list(inspect.signature(st.cumsum).parameters) == ["x", "dim", "reverse", "exclusive", "cu_seqlens"]
    assert list(inspect.signature(st.lerp).parameters) == ["input", "end", "weight"]
    assert list(inspect.signature(st.EmbeddingBag.forward).parameters) == ["self", "input", "offsets", "per_sample_weights"]
    assert list(inspect.signature(sw.cummax).parameters) == [
        "x",
        "dim",
        "axis",
        "reverse",
        "exclusive",
        "cu_seqlens",
        "tie",
        "out",
    ]
    assert list(inspect.signature(st.accelerate).parameters) == ["function", "forward"]
