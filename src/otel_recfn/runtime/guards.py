"""RecordFunction on and off in the calling thread (source: ``at::enableRecordFunction``, ``at::RecordFunctionGuard``)."""

from __future__ import annotations

from otel_recfn.runtime import callback_lists, thread_locals


def enable_record_function(enable: bool = True) -> None:
    """Switch RecordFunction in this thread. Off, nobody observes what it does: no callback, and not the recorder either."""
    state = thread_locals.current()
    callback_lists.install(state, state.callbacks, bool(enable))


def is_record_function_enabled() -> bool:
    """Whether anybody observes this thread."""
    return thread_locals.current().enabled


class RecordFunctionGuard:
    """``with RecordFunctionGuard(enabled):`` switches RecordFunction in this thread; leaving switches it back. Guards nest."""

    def __init__(self, is_enabled: bool = True) -> None:
        self._enabled = is_enabled
        self._before: list[bool] = []

    def __enter__(self) -> RecordFunctionGuard:
        self._before.append(is_record_function_enabled())
        enable_record_function(self._enabled)
        return self

    def __exit__(self, *_error: object) -> None:
        enable_record_function(self._before.pop())


class DisableRecordFunctionGuard(RecordFunctionGuard):
    """``with DisableRecordFunctionGuard():`` nobody observes this thread."""

    def __init__(self) -> None:
        super().__init__(False)
