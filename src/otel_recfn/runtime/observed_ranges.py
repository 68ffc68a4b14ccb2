"""The range observer: begins ranges of ``record_function`` while a callback may want them (``Recorder.set_range_observer``)."""

from __future__ import annotations

from otel_recfn.model.scope import RecordScope
from otel_recfn.ranges.async_range import NOT_RECORDED, RecordedRange
from otel_recfn.ranges.protocol import RangeHandle
from otel_recfn.recording.recorder import recorder
from otel_recfn.runtime import callback_lists
from otel_recfn.runtime.other_observers import Others
from otel_recfn.runtime.record_function import SOURCE, RecordFunction
from otel_recfn.runtime.step_callbacks import get_step_callbacks, leave_next_unobserved


def observe_range(name: str, args: str | None, flags: int, code: str = "") -> RangeHandle:
    """Begin a range, for callbacks and the recorder. ``args`` is its only input."""
    step = get_step_callbacks(RecordScope.USER_SCOPE)
    if not step.callbacks and Others.told is None:
        leave_next_unobserved()
        return _record_range(name, flags, code)
    range_ = RecordFunction(step)
    range_._flags, range_._code = flags, code
    range_.before(name, (args,) if args is not None and range_.needs_inputs() else ())
    return range_


def _record_range(name: str, flags: int, code: str) -> RangeHandle:
    """Begin a range that no callback wants: for the recorder alone."""
    if not callback_lists.global_entries():
        callback_lists.watch_ranges()  # the thread whose callback wanted ranges may have ended
    event_id = recorder.begin(name, RecordScope.USER_SCOPE, SOURCE, "", flags, code=code)
    return RecordedRange(event_id) if event_id else NOT_RECORDED
