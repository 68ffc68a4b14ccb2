"""What began before a recording belongs to nobody in it, whenever its record was written and
whether it was drained or not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import source_calls
from helpers.recording_helpers import SOURCE, USER, Capture, difference
from otel_recfn.model import batch as batch_module
from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, ContextReading, RecorderCounters


class EndsRecording:
    """A context reader: where it is asked, in the middle of a begin, the recording ends."""

    def __init__(self, recorder: Recorder, then: Callable[[], object] = lambda: None) -> None:
        self.recorder, self.then, self.pending = recorder, then, True

    def __call__(self) -> ContextReading | None:
        if self.pending:
            self.pending = False
            self.recorder.stop()
            self.recorder.drain(close_open=True)
            self.then()
        return None


def names(rows: list) -> list[str]:  # type: ignore[type-arg]
    return [row.name for row in rows]


def again(recorder: Recorder) -> None:
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)


def begin(recorder: Recorder, name: str) -> int:
    return source_calls.begin(name, USER, SOURCE)


@pytest.mark.parametrize("drained", [False, True])
def test_ranges_that_no_last_drain_has_delivered(capture: Capture, drained: bool) -> None:
    recorder = capture.recorder
    outer = capture.begin("open across stop and start")
    capture.end(capture.begin("ended"))
    source_calls.mark("mark")
    if drained:
        assert names(capture.drain()) == ["ended", "mark"]
        capture.end(capture.begin("ended later"))
    recorder.stop()
    later = Capture(recorder)
    inside = later.begin("inside")
    capture.end(outer)
    later.end(inside)
    (row,) = later.finish()
    assert (row.name, row.parent, row.root) == ("inside", 0, inside)
    assert [opened.event_id for opened in later.opened()] == [inside]
    lost = capture.counters().lost_in_drain
    assert lost == (2 if drained else 3)


def no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("open_ranges", [False, True])
def test_what_a_drain_found_no_memory_for(
    capture: Capture, monkeypatch: pytest.MonkeyPatch, open_ranges: bool
) -> None:
    recorder = capture.recorder
    left_open = capture.begin("left open")
    for _ in range(3):
        capture.end(capture.begin("ended"))
    # Memory runs out after the rows were read, and before they are a batch.
    monkeypatch.setattr(batch_module, "drain_columns", no_memory)
    with pytest.raises(MemoryError):
        recorder.drain(open_ranges=open_ranges)
    monkeypatch.undo()
    capture.end(left_open)
    assert names(capture.finish()) == ["left open"]
    assert capture.counters() == RecorderCounters(lost_in_drain=3)


@pytest.mark.parametrize("starts", ["within the begin", "after it"])
def test_a_begin_that_is_under_way_when_its_recording_ends(capture: Capture, starts: str) -> None:
    recorder = capture.recorder
    within = starts == "within the begin"
    recorder.set_context_reader(EndsRecording(recorder, lambda: within and again(recorder)))
    late = capture.begin("late")
    before = recorder.counters()
    if not within:
        again(recorder)
    inside = capture.begin("inside")
    for event_id in (inside, late):
        capture.end(event_id)
    rows = capture.finish()
    assert [(row.name, row.parent) for row in rows] == [("inside", 0)]
    assert [opened.event_id for opened in capture.opened()] == [inside]
    counts = difference(recorder.counters(), before)
    assert (counts.lost_in_drain, counts.dropped) == (0, 0), (
        "it is no loss: it began when nothing was recorded any more"
    )
    assert len(capture.rows()) == 1
    recorder.set_context_reader(None)
