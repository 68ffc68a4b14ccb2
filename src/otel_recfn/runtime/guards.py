"""RecordFunction on and off in the calling thread (source: ``at::enableRecordFunction``, ``at::RecordFunctionGuard``)."""

from __future__ import annotations

from otel_recfn.runtime import callback_lists


def enable_record_function(enable: bool = True) -> None:
    """Switch RecordFunction in this thread. Off, nobody observes what it does: no callback, and not the recorder either.

    With torch imported it is PyTorch's own switch (``torch.autograd._enable_record_function``), which PyTorch's profilers obey
    too, and which PyTorch hands on to what works for the thread.
    """
    callback_lists.enable(bool(enable))


def is_record_function_enabled() -> bool:
    """Whether anybody observes this thread."""
    return callback_lists.is_enabled()


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
