"""What the runtime's tests are written in: observers that note what they are told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.callbacks.callback import RecordFunctionCallback
from otel_recfn.callbacks.operations import record_function_enter, record_function_enter_new
from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.registry import add_global_callback
from otel_recfn.model.events import RecordScope

FUNCTION, USER = RecordScope.FUNCTION, RecordScope.USER_SCOPE

FORMS = pytest.mark.parametrize(
    "enter", [record_function_enter, record_function_enter_new], ids=["legacy", "new"]
)
"""The two forms of a range that calls begin and end."""


class Notes(list[Any]):
    """``("start", name)`` and ``("end", name)`` of the ranges that its callbacks saw."""

    def callback(self, label: str = "") -> RecordFunctionCallback:
        """A callback that notes its ranges, with the label where there is one."""
        more = (label,) if label else ()
        return RecordFunctionCallback(
            lambda fn: self.append(("start", fn.name(), *more)),
            lambda fn, context: self.append(("end", fn.name(), *more)),
        )


def run_range(name: str, scope: RecordScope = FUNCTION, *inputs: Any) -> None:
    """One range, from begin to end."""
    range_ = RecordFunction(scope)
    range_.before(name, inputs)
    range_.end()


def pairs(*names: str) -> list[Any]:
    """The notes of ranges one after the other."""
    return [note for name in names for note in (("start", name), ("end", name))]


def observe(read: Any) -> list[Any]:
    """What ``read(fn)`` gives in the start callback of each range from now on."""
    seen: list[Any] = []
    add_global_callback(
        RecordFunctionCallback(lambda fn: seen.append(read(fn))).needs_inputs(True).needs_ids(True)
    )
    return seen


def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(PATIENCE_S)
    return results[0]
