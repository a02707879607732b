"""torch's own operations with sternway's backward, in code that nobody edits."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from .embedding_bag import embedding_bag
from .lerp import lerp
from .scan import cummax, cummin, cumprod, cumsum, logcumsumexp

_SCANS = (cumsum, cumprod, cummax, cummin, logcumsumexp)
_OURS: dict[Any, Callable[..., Any]] = {
    **{getattr(home, scan.__name__): scan for scan in _SCANS for home in (torch, torch.Tensor)},
    torch.lerp: lerp,
    torch.Tensor.lerp: lerp,
    torch.nn.functional.embedding_bag: embedding_bag,
}
_SCAN_NAMES = {"input": "x", "dim": "dim", "axis": "dim"}
_NAMES: dict[Any, dict[str, str]] = {
    **dict.fromkeys(_SCANS, _SCAN_NAMES),
    **{ours: {name: name for name in inspect.signature(ours).parameters} for ours in (lerp, embedding_bag)},
}
"""What ours call the arguments of torch's by keyword; calls with others, such as out, stay with torch."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Accelerate(contextlib.ContextDecorator, TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = _OURS.get(func)
        if ours is None or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        given = {name: x for name, x in kwargs.items() if not (x is None and name in ("out", "dtype"))}
        names = _NAMES[ours]
        if not given.keys() <= names.keys() or forward_ad._current_level >= 0:
            return func(*args, **kwargs)
        tensors = [x for x in (*args, *given.values()) if isinstance(x, torch.Tensor)]
        if any(type(x) not in _PLAIN for x in tensors):
            return func(*args, **kwargs)
        return ours(*args, **{names[name]: x for name, x in given.items()})


def accelerate() -> contextlib.AbstractContextManager[Any]:
    """Inside this context, or a function that it decorates, torch's own operations have sternway's backward.

    They are cumsum, cumprod, cummax, cummin, logcumsumexp and lerp, as functions and as methods of tensors, and
    torch.nn.functional.embedding_bag, which torch.nn.EmbeddingBag calls. Calls with ``out=`` or ``dtype=``, in-place ones,
    those on subclasses of tensors, those under no_grad and those inside forward-mode derivatives stay with torch. It
    holds for the thread that entered it, and costs every call of torch there about a microsecond. A function that
    torch.utils.checkpoint runs again, perhaps on another thread, is to be decorated itself.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> with st.accelerate():
        ...     y = x.cumprod(0)
        >>> y.sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
    """
    return _Accelerate()
