"""What began before a recording belongs to nobody in it, whenever its record was written and whether it was drained or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from recording_helpers import SOURCE, USER, Capture, Worker, difference

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
    return recorder.begin(name, USER, SOURCE)


@pytest.mark.parametrize("drained", [False, True])
def test_ranges_that_no_last_drain_has_delivered(capture: Capture, drained: bool) -> None:
    recorder = capture.recorder
    outer = capture.begin("open across stop and start")
    capture.end(capture.begin("ended"))
    recorder.mark("mark")
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
def test_what_a_drain_found_no_memory_for(capture: Capture, monkeypatch: pytest.MonkeyPatch, open_ranges: bool) -> None:
    recorder = capture.recorder
    left_open = capture.begin("left open")
    for _ in range(3):
        capture.end(capture.begin("ended"))
    monkeypatch.setattr(batch_module, "columns_of_drain", no_memory)
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
    told = difference(recorder.counters(), before)
    assert (told.lost_in_drain, told.dropped) == (0, 0), "it is no loss: it began when nothing was recorded any more"
    assert len(capture.rows()) == 1
    recorder.set_context_reader(None)


def test_a_late_begin_of_another_thread(capture: Capture, workers: list[Worker]) -> None:
    recorder = capture.recorder
    recorder.set_context_reader(EndsRecording(recorder))
    late = workers[0].call(begin, recorder, "late")
    again(recorder)
    inside = workers[1].call(begin, recorder, "inside")
    workers[2].call(recorder.end, late)
    workers[1].call(recorder.end, inside)
    assert names(capture.finish()) == ["inside"]


@pytest.mark.parametrize("point", ["mark", "memory"])
def test_late_marks_and_memory(recorder: Recorder, point: str) -> None:
    from otel_recfn.model.events import Extra

    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES, Extra.MEMORY)
    recorder.set_context_reader(EndsRecording(recorder))
    assert recorder.mark("late") if point == "mark" else recorder.memory(8, "cpu")
    later = Capture(recorder)
    assert names(later.finish()) == []
    assert later.counters() == RecorderCounters()


def test_ranges_of_many_recordings_keep_their_ids_and_names(recorder: Recorder) -> None:
    for number in range(20):
        capture = Capture(recorder)
        event_id = capture.begin(f"range {number % 3}")
        if number % 2:
            recorder.stop()
            continue
        capture.end(event_id)
        (row,) = capture.finish()
        assert (row.event_id, row.name, row.parent) == (event_id, f"range {number % 3}", 0)


def test_what_is_lost_is_counted_once(capture: Capture) -> None:
    recorder = capture.recorder
    for _ in range(5):
        capture.begin("left open")
        recorder.stop()
        again(recorder)
    capture.finish()
    assert capture.counters() == RecorderCounters(lost_in_drain=5)
