"""Every single allocation of a drain for several captures fails once: each gets its rows, or counts them."""

from __future__ import annotations

from collections.abc import Callable

from recording_program import RECORD

SESSION = (
    RECORD
    + """
from otel_recfn.batches.selection import Selected
from otel_recfn.session import drain_thread
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import Session
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.model.errors import OUT_OF_MEMORY

drain_thread.DRAIN_SECONDS = drain_thread.BUSY_DRAIN_SECONDS = 1_000.0  # what is recorded is drained by flush() alone
session = Session(recorder, [])
first, second, other = InMemorySink(10**6), InMemorySink(10**6), InMemorySink(10**6)
first.name, second.name, other.name = "first", "second", "other"
capture = Capture(Selected(), [first, second], buffer_bytes=8 << 20)
beside = Capture(Selected(scopes=1 << 7), [other], buffer_bytes=8 << 20)


def flush():
    session.flush(capture, 300)


def each_flush(fail):
    global failed
    for raised in each_failure(flush, fail):
        failed += 1
        assert raised is None or isinstance(raised, OUT_OF_MEMORY), repr(raised)
        record()


failed = 0
session.start(capture)
record()
each_flush(1)
each_flush(4)
session.start(beside)
each_flush(1)
each_flush(4)
session.stop(beside, 300)
session.stop(capture, 300)
assert failed > 50, failed
recorded, counts = recorder.counters(), session.counters(capture)
assert counts["rows"] + recorded.lost_in_drain == recorded.recorded, (counts, recorded)
for sink, counts in ((first, counts), (second, counts), (other, session.counters(beside))):
    ids = {event.event_id for event in sink.events()}
    assert len(ids) == len(sink.events()) == counts[f"{sink.name}.rows"] > 0
    assert len(ids) + counts.get(f"{sink.name}.missed", 0) == counts["rows"], counts
"""
)


def test_what_is_drained_goes_to_every_capture_or_is_counted(run_failing: Callable[..., object]) -> None:
    run_failing(SESSION)
