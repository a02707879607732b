"""The arguments of drop-ins, for type checkers: ours and torch's keywords. Each function documents ours."""

from __future__ import annotations

from typing import Protocol, TypeVar, overload

import torch
from torch import Tensor

R_co = TypeVar("R_co", covariant=True)
Out_contra = TypeVar("Out_contra", contravariant=True)

Pair = tuple[Tensor, Tensor] | list[Tensor]
"""The outputs of cummax and cummin as torch takes them: values and indices."""


class Scan(Protocol[R_co, Out_contra]):
    """A scan. It takes x as ``input`` and dim as ``axis``, too."""

    @overload
    def __call__(
        self,
        x: Tensor,
        dim: int,
        *,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        out: Out_contra | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        *,
        axis: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        out: Out_contra | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(
        self,
        *,
        input: Tensor,
        dim: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        out: Out_contra | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(
        self,
        *,
        input: Tensor,
        axis: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        out: Out_contra | None = ...,
    ) -> R_co: ...


class ScanWithDType(Protocol):
    """cumsum or cumprod, which take the dtype of the result."""

    @overload
    def __call__(
        self,
        x: Tensor,
        dim: int,
        *,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        dtype: torch.dtype | None = ...,
        out: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        x: Tensor,
        *,
        axis: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        dtype: torch.dtype | None = ...,
        out: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        *,
        input: Tensor,
        dim: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        dtype: torch.dtype | None = ...,
        out: Tensor | None = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        *,
        input: Tensor,
        axis: int,
        reverse: bool = ...,
        exclusive: bool = ...,
        cu_seqlens: Tensor | None = ...,
        dtype: torch.dtype | None = ...,
        out: Tensor | None = ...,
    ) -> Tensor: ...


class Lerp(Protocol):
    """lerp, which takes an output."""

    def __call__(self, input: Tensor, end: Tensor, weight: Tensor | float, *, out: Tensor | None = ...) -> Tensor: ...
