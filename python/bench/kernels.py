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
    run, run_plain, lock = Plan.run, Plan._run_plain, threading.Lock()

    def record(plan: Plan[Any]) -> None:
        with lock:
            names[plan.sku.kernel] = None

    def recorded(plan: Plan[Any], **operands: Any) -> None:
        record(plan)
        run(plan, **operands)

    def recorded_plain(plan: Plan[Any], operands: dict[str, Any]) -> bool:
        ran = run_plain(plan, operands)
        if ran:
            record(plan)
        return ran

    with mock.patch.multiple(Plan, run=recorded, _run_plain=recorded_plain):
        call()
    return "+".join(names)
