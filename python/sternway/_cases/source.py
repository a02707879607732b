"""Sources of the numbers of a case: random numbers of torch or NumPy, or a given series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from .. import errors
from .._arrays import Array, device_name
from .._library import info

Shape = tuple[int, ...]


class Source(Protocol):
    """Makes arrays on one device."""

    device: str

    def normal(self, shape: Shape) -> Array:
        """Draw numbers of mean 0 and deviation 1 in float64."""

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert to a dtype."""

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Make an array of whatever the memory holds."""

    def poisoned(self, shape: Shape, dtype: str) -> Array:
        """Make an array full of NaN."""


class TorchSource:
    """Random tensors of torch."""

    def __init__(self, device: str = "cpu", seed: int = 0) -> None:
        import torch

        self.torch, self.device = torch, device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, shape: Shape) -> Array:
        """Draw numbers of mean 0 and deviation 1 in float64."""
        return self.torch.randn(shape, dtype=self.torch.float64, device=self.device, generator=self.generator)

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert to a dtype."""
        return x.to(getattr(self.torch, dtype))

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Make an array of whatever the memory holds."""
        return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=self.device)

    def poisoned(self, shape: Shape, dtype: str) -> Array:
        """Make an array full of NaN."""
        return self.torch.full(shape, math.nan, dtype=getattr(self.torch, dtype), device=self.device)


class SeriesSource(TorchSource):
    """Tensors of torch filled with a series that repeats; each draw starts at another element."""

    def __init__(self, series: Sequence[float], device: str = "cpu") -> None:
        super().__init__(device)
        numbers = self.torch.tensor(series, dtype=self.torch.float64, device=device)
        self.series = (numbers - numbers.mean()) / numbers.std()
        self.draws = 0

    def normal(self, shape: Shape) -> Array:
        """The series, scaled to mean 0 and standard deviation 1."""
        self.draws += 1
        n = math.prod(shape)
        start = self.series.roll(-37 * self.draws)
        return start.repeat(-(-n // len(start)))[:n].reshape(shape)


class NumPySource:
    """Random arrays of NumPy."""

    device = "cpu"

    def __init__(self, seed: int = 0) -> None:
        import numpy

        self.numpy: Any = numpy
        self.generator = numpy.random.default_rng(seed)

    def normal(self, shape: Shape) -> Array:
        """Draw numbers of mean 0 and deviation 1 in float64."""
        return self.generator.standard_normal(shape)

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert to a dtype."""
        return self.numpy.asarray(x).astype(dtype)  # NumPy makes a scalar of an array without dimensions

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Make an array of whatever the memory holds."""
        return self.numpy.empty(shape, dtype)

    def poisoned(self, shape: Shape, dtype: str) -> Array:
        """Make an array full of NaN."""
        return self.numpy.full(shape, math.nan, dtype)


def cuda_devices() -> tuple[list[str], str]:
    """The CUDA devices that torch and this build can use, and the reason in words if there is none."""
    import torch

    facts = info()
    if "cuda" in facts["backends"] and torch.cuda.is_available():
        return [found["device"] for found in facts["devices"] if "error" not in found], ""
    if "cuda" in facts["backends"]:
        return [], "this PyTorch has no CUDA"
    return [], "this build carries no CUDA kernels" if facts.get("devices") else facts["driver"]


def usable(device: str) -> str:
    """The name of a device that can be used.

    Raises:
        UnsupportedError: for one that is not.
    """
    name = device_name(device)
    found, reason = cuda_devices()
    if name in ("cpu", *found):
        return name
    raise errors.make("unsupported", "sternway", "device", " or ".join(("cpu", *found)), f"{device!r}", reason)
