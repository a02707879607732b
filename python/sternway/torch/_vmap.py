"""What the drop-ins answer to vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import make


def refuse_vmap(name: str) -> Callable[..., NoReturn]:
    """A vmap rule for an autograd.Function that has none: an error that names the public function."""

    def vmap(*_: Any) -> NoReturn:
        raise make(
            "unsupported",
            f"sternway.torch.{name}",
            "the call",
            "made without vmap",
            "vmap",
            "add the batch as a leading dimension instead",
        )

    return staticmethod(vmap)
