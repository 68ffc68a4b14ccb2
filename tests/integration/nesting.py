"""What holds for the events of one capture, whatever the program did."""

from __future__ import annotations

from otel_recfn.model.batch import Event


def check_nesting(events: list[Event]) -> None:
    """Every range was recorded once, in a range of the same capture and thread or in none, and strictly inside it."""
    by_id = {event.event_id: event for event in events}
    assert len(by_id) == len(events)
    last_end: dict[tuple[int, int], int] = {}
    for event in sorted(events, key=lambda event: event.event_id):
        assert event.end_ns >= event.start_ns
        if event.parent:
            around = by_id[event.parent]
            assert around.thread == event.thread
            assert around.start_ns <= event.start_ns
            assert event.end_ns <= around.end_ns
        beside = (event.thread.number, event.parent)
        assert event.start_ns >= last_end.get(beside, 0)
        last_end[beside] = event.end_ns
