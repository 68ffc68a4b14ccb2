"""Calls a range's callbacks, which can't disturb the program: one that raises is removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otel_recfn.runtime import callback_lists, thread_locals
from otel_recfn.runtime.sampling import StartEndPair
from otel_recfn.support.interrupts import raised_by_signal_handler


def run_starts(pairs: Sequence[StartEndPair], range_: Any, contexts: list[Any]) -> None:
    """Call the starts with ``range_``, and add what each returns to ``contexts``.

    Raises:
        BaseException: a callback was interrupted. It has not started, nor have those after it: they get no end.
    """
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair in pairs:  # one by one: those before an interrupted one have started
            contexts.append(_run(pair, pair.start, range_))  # noqa: PERF401
    finally:
        state.in_callback = outer


def run_ends(pairs: Sequence[StartEndPair], range_: Any, contexts: Sequence[Any]) -> None:
    """Call the ends of those that started, each with ``range_`` and its context."""
    state = thread_locals.current()
    outer, state.in_callback = state.in_callback, True
    try:
        for pair, context in zip(pairs, contexts, strict=False):
            _run(pair, pair.end, range_, context)
    finally:
        state.in_callback = outer


def _run(pair: StartEndPair, function: Callable[..., Any] | None, range_: Any, *context: Any) -> Any:
    if function is None or callback_lists.has_failed(pair.handle):
        return None
    try:
        return function(range_, *context)
    except (Exception, SystemExit) as error:  # a callback can't end the program
        if raised_by_signal_handler(error):
            raise
        callback_lists.failed(pair.handle, error, _name_of(range_))
        return None


def _name_of(range_: Any) -> str:
    try:
        return str(range_.name())
    except Exception:  # a schema may be of any kind
        return ""
