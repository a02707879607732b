"""The names of the kernels that a call runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

from .._plan import Plan


def kernels_of(call: Callable[[], object]) -> str:
    """Call once, and return ``sku.kernel`` of each plan that ran, in order, joined by "+".

    A kernel that ran several times is named once. Plans that autograd runs on threads of its own are seen too.
    """
    names: dict[str, None] = {}
    run, lock = Plan.run, threading.Lock()

    def recorded(plan: Plan[Any], **operands: Any) -> None:
        with lock:
            names[plan.sku.kernel] = None
        run(plan, **operands)

    with mock.patch.object(Plan, "run", recorded):
        call()
    return "+".join(names)
