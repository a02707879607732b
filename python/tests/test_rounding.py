"""Sums on the CPU, which are formed in float64 from terms in float64, are rounded once, in whatever mode the caller rounds."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import platform
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from families import FAMILIES, Family, make
from support import F32, F64, FLOATS, bits

import sternway as sw

STEPS = {torch.bfloat16: (2**-7, 2**-40), torch.float16: (2**-10, 2**-24)}
"""From 1 to the next number, and a number that float32 has no room for beside 1."""


def bags(dy: torch.Tensor) -> torch.Tensor:
    n = len(dy)
    return sw.embedding_bag_backward(dy[:, None], torch.zeros(n, dtype=torch.int64), torch.arange(n), num_embeddings=1)


def scales(dy: torch.Tensor) -> torch.Tensor:
    return sw.dequantize_per_token_backward(dy[None], dy.new_ones(1), q=torch.ones((1, len(dy)), dtype=torch.int8))[1]


def weights(dy: torch.Tensor) -> torch.Tensor:
    first = torch.zeros(1, dtype=torch.int64)
    return sw.embedding_bag_per_sample_weights_backward(dy[None], torch.ones_like(dy)[None], first, first)


SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": sw.cumsum_backward,
    "rows": lambda dy: sw.cumsum_backward(dy.repeat(300, 1))[:, 0],
    "columns": lambda dy: sw.cumsum_backward(dy[:, None].repeat(1, 300), 0)[0],
    "few columns": lambda dy: sw.cumsum_backward(dy[:, None].repeat(1, 3), 0)[0],
    "every other number": lambda dy: sw.cumsum_backward(dy.repeat_interleave(2)[::2], out=dy.new_empty(2 * len(dy))[::2]),
    "a maximum": lambda dy: sw.cummax_backward(dy, -torch.arange(float(len(dy))).to(dy.dtype)),
    "bags": bags,
    "weights of samples": weights,
    "lerp": lambda dy: sw.lerp_backward(dy, 1.0, b_shape=(1,), needs=("db",))[0],
    "lerp of columns": lambda dy: sw.lerp_backward(dy[:, None].repeat(1, 300), 1.0, b_shape=(300,), needs=("db",))[0],
    "scales": scales,
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", STEPS, ids=str)
def test_rounded_once(dtype: torch.dtype, name: str) -> None:
    step, tiny = STEPS[dtype]
    dy = torch.tensor([1.0, step / 2, tiny], dtype=dtype)
    assert SUMS[name](dy).flatten()[0].item() == 1 + step


# --- Terms that cancel ------------------------------------------------------------------------------------------------


def wide(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy().astype(np.longdouble)


def assert_rounded_once(out: torch.Tensor, terms: np.ndarray) -> None:
    """Sums of the rows of terms: half a unit in the last place of the result's dtype, and the roundings of float64."""
    info, want = torch.finfo(out.dtype), terms.sum(1)
    exponent = np.frexp(np.abs(want).astype(np.float64))[1] - 1
    unit = np.exp2(np.maximum(exponent, np.frexp(info.tiny)[1] - 1).astype(np.float64)) * info.eps
    carried = (4 + np.log2(terms.shape[1])) * 2.0**-53 * np.abs(terms).sum(1)
    excess = np.abs(wide(out) - want) - carried
    assert (excess / unit).max() <= 0.5001


@pytest.mark.parametrize("length", [2, 9, 64, 127, 128, 300])
@pytest.mark.parametrize("zero", [None, torch.int8, torch.int32, F32, F64], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_terms_of_dequantize_are_float64(dtype: torch.dtype, zero: torch.dtype | None, length: int) -> None:
    """Among 500 rows some cancel to a thousandth; terms in float32 would be some hundred units off."""
    g, n = torch.Generator().manual_seed(length), 500
    dy, scale = torch.randn(n, length, generator=g).to(dtype), torch.rand(n, generator=g).add(0.01).to(dtype)
    q = torch.randint(-128, 128, (n, length), dtype=torch.int8, generator=g)
    z = None if zero is None else (torch.randn(n, generator=g, dtype=F64) * 5).to(zero)
    _, dscale, *dzero = sw.dequantize_per_token_backward(dy, scale, q=q, zero_point=z)
    shift = 0 if z is None else wide(z)[:, None]
    assert_rounded_once(dscale, wide(dy) * (wide(q) - shift))
    if dzero:
        assert_rounded_once(dzero[0], -wide(scale)[:, None] * wide(dy))


@pytest.mark.parametrize("length", [2, 9, 64, 127, 128, 300])
@pytest.mark.parametrize("zero", [None, torch.int32, F32], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_terms_of_fake_quantize_are_float64(dtype: torch.dtype, zero: torch.dtype | None, length: int) -> None:
    """x / scale decides its level in float32, or wider; what is left of it is formed in float64."""
    g, n, low, high = torch.Generator().manual_seed(length), 500, -2, 2
    dy, x = (torch.randn(n, length, generator=g).to(dtype) for _ in range(2))
    scale = torch.rand(n, generator=g).add(0.01).to(dtype)
    z = None if zero is None else torch.randint(-1, 2, (n,), generator=g).to(zero)
    _, dscale, dzero = sw.fake_quantize_per_token_backward(dy, x, scale, z, quant_min=low, quant_max=high)
    decided = torch.promote_types(dtype, F32)
    shift = 0 if z is None else z.double()[:, None]
    t = (x.to(decided) / scale.to(decided)[:, None]).round().double() + shift
    inside = ((t >= low) & (t <= high)).numpy()
    steps = wide(t.clamp(low, high) - shift)
    ratio = wide(x / scale[:, None]) if dtype == F64 else wide(x) / wide(scale)[:, None]
    residual = steps - ratio
    assert_rounded_once(dscale, wide(dy) * np.where(inside, residual, steps))
    if dzero is not None:
        assert_rounded_once(dzero, np.where(inside, 0, -wide(scale)[:, None] * wide(dy)))


def test_dzero_point_is_scaled_once() -> None:
    """-scale * sum(dy): products that overflow one by one, and a sum that does not."""
    dy, scale = torch.tensor([[2.0**600, 2.0**560, -(2.0**600)]], dtype=F64), torch.tensor([2.0**450], dtype=F64)
    q, zero = torch.zeros(1, 3, dtype=torch.int8), torch.zeros_like(scale)
    assert sw.dequantize_per_token_backward(dy, scale, q=q, zero_point=zero)[2].tolist() == [-(2.0**1010)]


# --- The mode of the caller -------------------------------------------------------------------------------------------

UP, DOWN, TO_ZERO = {"aarch64": (0x400000, 0x800000, 0xC00000)}.get(platform.machine(), (0x800, 0x400, 0xC00))


@contextlib.contextmanager
def rounding(mode: int) -> Iterator[None]:
    """A rounding mode of this thread; left as it was found, and unchanged by what ran inside."""
    try:
        libm = ctypes.CDLL("libm.so.6")
    except OSError:
        pytest.skip("the C library here is not that of GNU, whose numbers of the modes this test knows")
    assert libm.fesetround(mode) == 0
    try:
        yield
        assert libm.fegetround() == mode
    finally:
        libm.fesetround(0)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """Subnormal numbers are zero in this thread; it still flushes them afterwards."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes nothing")
    subnormal = torch.full((1,), 2.0**-130)
    try:
        yield
        assert not torch.mul(subnormal, 1).any()
    finally:
        torch.set_flush_denormal(False)


MODES = {"up": (rounding, UP), "down": (rounding, DOWN), "to zero": (rounding, TO_ZERO), "flushing": (flushing,)}
SIZES = (((40, 10), 1), ((30, 300), 1), ((64, 2050), 4), ((2, 2**15), 4))
SMALL = {torch.float16: 2.0**-14, torch.bfloat16: 2.0**-126, F32: 2.0**-126, F64: 2.0**-1022}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_mode_of_the_caller_changes_no_bit(dtype: torch.dtype, family: Family, mode: str) -> None:
    """Neither of select nor of run, on one thread or several, with normal gradients and with subnormal ones."""
    enter, *of = MODES[mode]
    for (shape, count), small in itertools.product(SIZES, (False, True)):
        sw.set_num_threads(count)
        problem = make(family, shape, dtype, "cpu")
        if small:
            problem.floating.mul_(SMALL[dtype])
        want = problem.run()
        outputs = {name: out.tensor for name, out in problem.outputs().items()}
        with enter(*of):
            problem.plan().run(**problem.inputs_for(outputs), **outputs)
        assert all(torch.equal(bits(outputs[name].contiguous()), bits(want[name])) for name in want), (shape, small)


def test_nothing_is_flushed_to_zero() -> None:
    """Also in a thread of which torch has asked it: a scale that is no normal number is not 0."""
    x, scale = torch.tensor([[4e-40, 9e-40, -3e-38]]), torch.tensor([2e-40])
    want = sw.fake_quantize_per_token_backward(x, x, scale, quant_min=-8, quant_max=7)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes nothing")
    try:
        got = sw.fake_quantize_per_token_backward(x, x, scale, quant_min=-8, quant_max=7)
    finally:
        torch.set_flush_denormal(False)
    assert want[0].tolist() == [[x[0, 0].item(), x[0, 1].item(), 0.0]]
    assert all(torch.equal(a, b) for a, b in zip(got[:2], want[:2], strict=True))
