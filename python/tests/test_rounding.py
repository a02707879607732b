"""Sums of 16-bit numbers on the CPU, which are formed in float64, are rounded once: not to float32 first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
