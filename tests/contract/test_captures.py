"""Start and stop, while ranges are open."""

from __future__ import annotations

from recording_helpers import PARTIAL, SOURCE, USER, Capture, Worker, by_name, check_laws

from otel_recfn.model.events import ALL_SCOPES_MASK
from otel_recfn.recording.recorder import Recorder
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES


def test_nothing_is_recorded_before_start_and_after_stop(recorder: Recorder) -> None:
    before = recorder.counters()
    assert not recorder.recording
    assert recorder.begin("before", USER, SOURCE) == 0
    recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    assert recorder.recording
    recorder.stop()
    assert not recorder.recording
    assert recorder.begin("after", USER, SOURCE) == 0
    assert len(recorder.drain(close_open=True)) == 0
    assert recorder.counters() == before


def test_ends_are_taken_after_stop(capture: Capture) -> None:
    event_id = capture.begin()
    capture.recorder.stop()
    capture.end(event_id)
    [row] = capture.drain(close_open=True)
    assert row.flags == 0


def test_what_was_open_in_an_earlier_capture_is_nobodys_parent(capture: Capture) -> None:
    old = capture.begin("old")
    [sealed] = capture.finish()
    assert sealed.flags == PARTIAL
    second = Capture(capture.recorder)
    new = second.begin("new")
    second.end(new)
    second.end(old)
    second.end(second.begin("last"))
    rows = by_name(second.finish())
    assert set(rows) == {"new", "last"}
    assert (rows["new"].parent, rows["new"].root, rows["last"].parent) == (0, new, 0)
    check_laws(second.rows(), second.opened())


def test_ranges_of_two_captures_interleaved(capture: Capture, workers: list[Worker]) -> None:
    """The old one ends in the middle of the new ones: it must not tear them."""
    old = workers[0].call(capture.begin, "old")
    capture.finish()
    second = Capture(capture.recorder)
    outer = workers[0].call(second.begin, "outer")
    workers[0].call(second.end, old)
    inner = workers[0].call(second.begin, "inner")
    workers[0].call(second.end, inner)
    workers[0].call(second.end, outer)
    rows = by_name(second.finish())
    assert (rows["inner"].parent, rows["outer"].parent) == (outer, 0)
    assert rows["inner"].flags == rows["outer"].flags == 0


def test_start_while_recording_changes_the_scopes_only(capture: Capture) -> None:
    outer = capture.begin("outer")
    capture.recorder.start(1 << USER, DEFAULT_BUFFER_BYTES)
    assert capture.recorder.begin("other scope", 0, SOURCE) == 0
    inner = capture.begin("inner")
    capture.recorder.start(ALL_SCOPES_MASK, DEFAULT_BUFFER_BYTES)
    leaf = capture.recorder.begin("leaf", 0, SOURCE)
    for event_id in (leaf, inner, outer):
        capture.end(event_id)
    rows = by_name(capture.finish())
    assert (rows["leaf"].parent, rows["inner"].parent, rows["outer"].parent) == (inner, outer, 0)
