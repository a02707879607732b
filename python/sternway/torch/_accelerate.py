"""``accelerate()``: sternway's operations in place of torch's own, for code that is not edited.

While a region is open in any thread, the attributes by which code reaches the functions of _served.py, such as
``torch.cumsum``, hold replacements that ask whether the calling thread is inside a region. Other functions of torch are not
touched, so their calls cost nothing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from ..errors import make, shown
from ._autograd.calls import flag, is_bool
from ._autograd.overrides import has_foreign_mode
from ._import_hook import load_inside
from ._served import SERVED, Served, bound, prepared

__all__ = ["accelerate"]

_ABSENT = object()
_is_grad_enabled = torch.is_grad_enabled

_MOST_CHANGES = 256 if sys.version_info >= (3, 13) else sys.maxsize
"""How often the methods of torch.Tensor are replaced in a process. After 1000 changes CPython 3.13 caches the attributes of a
class no more, so from this number on the replacements stay. They pass the calls of threads outside of regions to torch."""


class _Region:
    """A part of a thread's run inside accelerate()."""

    __slots__ = ("siblings", "use_our_forward")

    def __init__(self, use_our_forward: bool, siblings: list[_Region]) -> None:
        self.use_our_forward = use_our_forward  # the option forward
        self.siblings = siblings  # the open regions of the thread that entered it, innermost last


class _Thread(threading.local):
    """The open regions of a thread."""

    def __init__(self) -> None:
        self.regions: list[_Region] = []


_thread = _Thread()


class _Patch:
    """The attributes of a module or a class that are replaced while regions are open."""

    def __init__(self, home: Any, served: list[Served]) -> None:
        self.home = home
        self.is_class = isinstance(home, type)
        self.space = vars(home)
        self.changes = [
            (s.name, self.space.get(s.name, _ABSENT), _replacement(s, getattr(home, s.name), home is torch)) for s in served
        ]
        """Name, original attribute (_ABSENT if a base class has it), and replacement."""
        self.applied = 0  # how often

    def apply(self) -> None:
        """Replace attributes, except where another library did, whose functions then do the calls as before."""
        space, home = self.space, self.home
        self.applied += 1
        for name, found, replacement in self.changes:
            if space.get(name, _ABSENT) is found:
                if self.is_class:
                    setattr(home, name, replacement)
                else:
                    space[name] = replacement  # quicker

    def undo(self, *, always: bool = False) -> None:
        """Restore attributes, except where another library replaced ours, which then pass all calls to torch.

        Args:
            always: even after _MOST_CHANGES.
        """
        if self.is_class and self.applied >= _MOST_CHANGES and not always:
            return
        space, home = self.space, self.home
        for name, found, replacement in self.changes:
            if space.get(name) is replacement:
                if found is _ABSENT:
                    delattr(home, name)
                elif self.is_class:
                    setattr(home, name, found)
                else:
                    space[name] = found


def _replacement(served: Served, original: Callable[..., Any], builtin: bool) -> Callable[..., Any]:
    """A function that does the calls of torch's own by ours, in threads inside a region and where a plan can."""

    def operation(*args: Any, **kwargs: Any) -> Any:
        regions = _thread.regions  # torch.compile keeps those of the thread that compiles
        if regions and (_is_grad_enabled() or (served.has_forward and regions[-1].use_our_forward)):
            return _do(served, original, regions[-1].use_our_forward, args, kwargs)
        return _by_torch(original, args, kwargs)

    functools.update_wrapper(operation, original)
    if builtin:
        operation.__qualname__ = served.name  # by which pickle finds it
        torch.jit._builtins._register_builtin(operation, f"aten::{served.name}")
    else:  # torch.jit.script reads the function from this attribute
        operation.__original_fn, operation.__script_if_tracing_wrapper = original, True  # type: ignore[attr-defined]
    return operation


def _do(
    served: Served, original: Callable[..., Any], use_our_forward: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do a call by ours if a plan can, which is decided before anything runs, otherwise by torch's."""
    values: Any = args
    given = None
    if kwargs or len(args) != len(served.names):
        given = bound(served, args, kwargs)
        if given is None:
            return _by_torch(original, args, kwargs)
        values = [given[name] for name in served.names]
    done = served.run_eager(*values, use_our_forward)
    if done is not None:
        return done
    ours = prepared(served, dict(zip(served.names, args, strict=False)) if given is None else given, use_our_forward)
    if ours is None:
        return _by_torch(original, args, kwargs)
    function, arguments = ours
    return function(*arguments)


def _by_torch(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own call. torch would hand on to modes and subclasses what it finds under the public name, which is ours."""
    values = (*args, *kwargs.values())
    if has_torch_function(values) and not torch.compiler.is_dynamo_compiling():
        return handle_torch_function(original, values, *args, **kwargs)
    return original(*args, **kwargs)


_HOMES = list(dict.fromkeys(home for served in SERVED for home in served.homes))
_PATCHES = [_Patch(home, [served for served in SERVED if home in served.homes]) for home in _HOMES]
_SERVED = {getattr(home, served.name): served for served in SERVED for home in served.homes}
"""By function of torch, how we do its calls."""


class _Open:
    """The number of open regions of all threads. The attributes of torch are replaced while there are any."""

    def __init__(self) -> None:
        # Reentrant: garbage collection may close a generator, and the region that it is inside, at any place.
        self.lock = threading.RLock()
        self.count = 0

    def add(self) -> None:
        _keep_originals_in_caches()  # outside the lock, as it may wait for another thread that imports
        with self.lock:
            self.count += 1
            if self.count == 1:
                for patch in _PATCHES:
                    patch.apply()

    def remove(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                for patch in _PATCHES:
                    patch.undo()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Keep torch's own functions in their places: meanwhile torch does the calls in regions of other threads, too."""
        with self.lock:
            for patch in _PATCHES:
                patch.undo(always=True)
            try:
                yield
            finally:
                if self.count:
                    for patch in _PATCHES:
                        patch.apply()


_open = _Open()


@functools.cache
def _keep_originals_in_caches() -> None:
    """Let torch fill its caches of its own functions, so that none of them keeps a replacement.

    The import of torch._dynamo, which has some of them, takes a second: they are filled when somebody else imports it.
    """
    torch.overrides.get_testing_overrides()
    torch.overrides.is_tensor_method_or_property(torch.Tensor.lerp)
    if "torch._dynamo" in sys.modules:
        _fill_caches_of_dynamo()
    else:
        load_inside("torch._dynamo", _loading_dynamo)


@contextlib.contextmanager
def _loading_dynamo() -> Iterator[None]:
    with _open.suspended():
        yield
        _fill_caches_of_dynamo()


def _fill_caches_of_dynamo() -> None:
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()


class _Accelerate(contextlib.ContextDecorator, TorchFunctionMode):
    """A region of a thread. While torch.compile traces, it is a mode, which reaches methods of traced tensors as well."""

    def __init__(self, use_our_forward: bool) -> None:
        super().__init__()
        self.use_our_forward = use_our_forward
        self.entered: list[_Region] = []  # one object may be entered again, and by several threads

    def __enter__(self) -> _Accelerate:
        if torch.compiler.is_dynamo_compiling():
            return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]
        region = _Region(self.use_our_forward, _thread.regions)
        self.entered.append(region)
        region.siblings.append(region)
        _open.add()
        return self

    def __exit__(self, *error: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            super().__exit__(*error)  # type: ignore[no-untyped-call]
            return
        entered = list(self.entered)  # which other threads change
        ours = [region for region in entered if region.siblings is _thread.regions]
        region = (ours or entered)[-1]  # a generator may be closed by another thread
        self.entered.remove(region)
        region.siblings.remove(region)
        _open.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        served, kwargs = _SERVED.get(func), kwargs or {}
        if has_foreign_mode():  # which was entered before, and sees the call that we pass on
            return func(*args, **kwargs)
        if served is None or not (_is_grad_enabled() or (served.has_forward and self.use_our_forward)):
            return func(*args, **kwargs)
        return _do(served, func, self.use_our_forward, args, kwargs)


F = TypeVar("F", bound=Callable[..., Any])


@overload
def accelerate(function: F, /, *, forward: bool = ...) -> F: ...
@overload
def accelerate(*, forward: bool = ...) -> _Accelerate: ...
def accelerate(function: Callable[..., Any] | None = None, /, *, forward: bool = True) -> Any:
    """Give torch's own operations sternway's backward, inside a ``with`` block or a function that this decorates.

    The operations are the scans, such as cumsum, and lerp, as functions and as methods of tensors;
    torch.nn.functional.embedding_bag and embedding, which torch.nn.EmbeddingBag and Embedding call; and
    torch.fake_quantize_per_tensor_affine, fake_quantize_per_channel_affine and their learnable forms, which modules of torch.ao
    call and which keep torch's numbers. Each call is decided before its forward runs: a call that no plan can do stays with
    torch, such as one with another dtype, rank or layout, a device without a kernel, or tensors without values or of a
    subclass. Under a TorchFunctionMode of another library all calls stay with torch, and so do calls with ``out=`` or
    ``dtype=``, in-place calls, calls inside forward-mode derivatives (except scans and lerp in one jvp), under no_grad all
    calls except scans and fake quantizations, and fake quantizations in every trace and transform.

    It applies to the thread that entered it. Meanwhile the attributes of torch that hold these functions are replaced, in the
    whole process; in other threads the replacements call torch's functions. Other calls of torch cost what they do without it.
    It does not reach a function that was imported by name before (``from torch import cumsum``), one that another library
    replaced before, nor methods of tensors in a function that torch.compile compiled, unless the compiled function itself
    enters accelerate(), as a decorated one does. A function that torch.utils.checkpoint runs again, perhaps on another thread,
    must be decorated itself. A decorated generator or async function is inside it only while it is called, not while it runs.

    Args:
        function: the function that ``@accelerate`` decorates without parentheses; None: a context manager is returned.
        forward: True: the forward of scans and fake quantizations is sternway's, under no_grad too, but not in traces; False:
            every forward is torch's. An inner accelerate() overrides the outer.

    Returns:
        a context manager that is also a decorator; the decorated function, if one is given. Code that works without it works
        inside it, unless it writes to the input of a fake quantization before the backward, which reads it.

    Raises:
        InvalidProblemError: forward is no bool.
        TypeError: function cannot be called.

    Example:
        >>> import torch, sternway.torch as st
        >>> x = torch.tensor([2.0, 0.0, 3.0, 4.0], requires_grad=True)
        >>> with st.accelerate():
        ...     y = x.cumprod(0)
        >>> y.sum().backward()
        >>> x.grad
        tensor([ 1., 32.,  0.,  0.])
        >>> @st.accelerate
        ... def products(x):
        ...     return x.cumprod(0)
    """
    region = _Accelerate(flag("accelerate", "forward", forward))
    if function is None:
        return region
    if not callable(function):
        hint = f"write accelerate(forward={function})" if is_bool(function) else "write accelerate() in a with statement"
        raise make("type", "sternway.torch.accelerate", "function", "a function to decorate", shown(function), hint)
    return region(function)
