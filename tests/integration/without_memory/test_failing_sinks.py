"""Every single allocation of each sink, and of the thread of one, fails once: it goes on, and counts what it missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[2]

SINKS = """
import gzip
import itertools
import json
import logging
import os
import sys
from dataclasses import replace

logging.disable(logging.CRITICAL)
sys.path.insert(0, "{tests}")
from batches import make_batch
from failing_allocations import each_failure
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from otel_recfn.session.capture import Capture
from otel_recfn.model.batch import SpanContextRef
from otel_recfn.model.errors import OUT_OF_MEMORY
from otel_recfn.model.events import EventFlag, make_event_id
from otel_recfn.model.scope import RecordScope
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.chrome import sink as chrome_sink
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.in_memory import InMemorySink
from otel_recfn.sinks.spans.budgets import Volume
from otel_recfn.sinks.spans.sink import SpansSink
from otel_recfn.batches.selection import Selected

chrome_sink.FIRST_PAUSE_SECONDS = 0.0  # each failure meets a batch that is written


class Kept(SpanProcessor):  # needs no memory for keeping spans: the list has room for twice as many as it has items
    def __init__(self):
        self.spans = [None] * 200_000
        del self.spans[100_000:]
        self.on_end = self.spans.append


kept = Kept()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(kept)
sinks = {{
    "spans": lambda: SpansSink(provider, roots_per_second=None),
    "folded_spans": lambda: SpansSink(provider, roots_per_second=None, volume=Volume(3, 2, 20)),
    "spans_in_background": lambda: BackgroundSink(SpansSink(provider, roots_per_second=None), max_share=1.0),
    "background": lambda: BackgroundSink(InMemorySink(10**6)),
    "chrome_trace": lambda: ChromeTraceSink("trace.json"),
    "chrome_trace_gz": lambda: ChromeTraceSink("trace.json.gz"),
    "in_memory": lambda: InMemorySink(10**6),
}}
sink = sinks[sys.argv[1]]()
capture = Capture(Selected(), [sink], buffer_bytes=1 << 20, open_range_s=1e-9)
numbers = itertools.count(1)


def batch(more=True):
    number = next(numbers)
    first = make_event_id(1, 10 * number)
    context = SpanContextRef(5, 6, 1) if number % 2 else SpanContextRef(0, 0, 0)
    leaf = {{"parent": first, "context": context, "name": f"leaf {{first}}"}}
    rows = [{{**leaf, "event_id": first + row, "sequence_nr": first if row == 1 else -1}} for row in range(1, 5)]
    backward = {{"scope": RecordScope.BACKWARD_FUNCTION, "forward_thread_id": 1, "sequence_nr": first}}
    rows.append({{"event_id": first + 6, "parent": first, "context": context, "name": "backward", **backward}})
    if more and context.trace_id:  # what it lies in ends with the batch after the next one
        around = first + 20
        rows.append({{"event_id": first + 5, "parent": around, "root": around, "context": context, "name": "early"}})
    rows.append({{"event_id": first, "context": context, "shapes": "[[2]]", "error": "ValueError: wrong"}})
    outer = {{"event_id": first + 30, "context": context, "name": "hangs", "flags": EventFlag.PARTIAL}}
    hang = [{{**outer, "event_id": first + 31, "parent": first + 30}}, outer] if more else []
    made = make_batch([*rows, *hang], [] if context.trace_id else [{{"event_id": first, "name": "top"}}])
    return replace(made, closed=len(rows))


made = [None]
given = 0


def write():
    capture.write(made[0], look=True)


def next_batch(more=True):
    global given
    made[0] = batch(more)
    given += made[0].closed


next_batch()
write()
next_batch()
failed = 0
for fail in (1, 4):
    for raised in each_failure(write, fail):
        failed += 1
        assert raised is None or isinstance(raised, OUT_OF_MEMORY), repr(raised)
        if raised is not None:  # it was not taken
            write()
        next_batch()
        assert not capture.sinks.removed, capture.sinks.removed[0].counters()
    next_batch()
write()
for _ in range(3):
    next_batch(more=False)
    write()
assert capture.flush(300)
capture.close(20)
counters = capture.counters()
name = sink.name
missed = counters.get(f"{{name}}.missed", 0)
assert failed > 10, failed
assert counters["rows"] == given
assert not capture.sinks.removed
if name == "spans":
    own = sink.counters()
    fates = ("spans", "folded", "folding", "unsampled", "suppressed", "no_provider", "other_kinds", "failed")
    assert own["rows"] + own.get("queue_dropped", 0) + missed == counters["rows"]
    assert not missed or isinstance(sink, SpansSink), missed
    assert own["rows"] + own["roots"] + own["summaries"] + own["open_ranges"] == sum(own[fate] for fate in fates), own
    assert not own["folding"]
    assert own["open_ranges"] > 2
    spans = kept.spans[100_000:]
    assert own["spans"] == len(spans) > 0
    there = {{(span.context.trace_id, span.context.span_id) for span in spans}} | {{(5, 6)}}
    assert len(there) == len(spans) + 1
    orphans = [span for span in spans if span.parent and (span.parent.trace_id, span.parent.span_id) not in there]
    assert not orphans, (len(orphans), [(span.name, span.attributes) for span in orphans[:9]])
elif name == "in_memory":
    received = counters.get("in_memory.rows_received", counters["in_memory.rows"])
    assert received + missed == counters["rows"]
    assert counters["in_memory.rows"] == len(getattr(sink, "_inner", sink).events())
    assert counters["in_memory.rows"] > 0
else:
    assert counters["chrome_trace.events_written"] + counters["chrome_trace.failed"] + missed == counters["rows"]
    assert counters["chrome_trace.events_written"] > 0
    with (gzip.open if sys.argv[1].endswith("gz") else open)(sink.path, "rb") as file:
        shown = [event for event in json.load(file)["traceEvents"] if "Event id" in event.get("args", {{}})]
    assert len(shown) == counters["chrome_trace.events_written"]
    assert len({{event["args"]["Event id"] for event in shown}}) == len(shown)
"""

BACKGROUND = """
import logging

logging.disable(logging.CRITICAL)
sys.path.insert(0, "{tests}")
from batches import make_batch
from failing_allocations import fail_next_allocations
from otel_recfn.batches.selection import Selected
from otel_recfn.session.capture import Capture
from otel_recfn.sinks.background import BackgroundSink
from otel_recfn.sinks.in_memory import InMemorySink


class FailsInItsThread(InMemorySink):
    succeed = 1_000_000

    def write(self, batch):
        fail_next_allocations(self.succeed)  # until the next call: also what the thread does after this one
        super().write(batch)


inner = FailsInItsThread(10**6)
sink = BackgroundSink(inner, max_share=1.0)
capture = Capture(Selected(), [sink], buffer_bytes=1 << 20)
given = 0
for inner.succeed in range(150):
    capture.write(make_batch([{{}}] * 3))
    given += 3
    capture.flush_beside_writes(0.05)  # in vain where the thread finds no memory for it
inner.succeed = 1_000_000
capture.write(make_batch([{{}}] * 3))
given += 3
assert capture.flush_beside_writes(300)
counts = capture.counters()
assert counts["rows"] == given and "in_memory.missed" not in counts, counts
assert counts["in_memory.rows_received"] == given, counts
assert counts["in_memory.rows"] + counts["in_memory.queue_dropped"] == given, counts
assert len(inner.events()) == counts["in_memory.rows"] > 0
assert 0 < counts["in_memory.queue_dropped"] < given, counts
capture.close(300)
assert capture.counters()["in_memory.abandoned"] == 0
"""


@pytest.mark.parametrize(
    "sink", ["spans", "folded_spans", "spans_in_background", "background", "chrome_trace", "chrome_trace_gz", "in_memory"]
)
def test_a_sink_goes_on_and_counts_what_it_found_no_memory_for(run_failing: Callable[..., object], sink: str) -> None:
    run_failing(SINKS.format(tests=HELPERS), sink)


def test_the_thread_of_a_sink_goes_on_and_counts_what_it_found_no_memory_for(run_failing: Callable[..., object]) -> None:
    run_failing(BACKGROUND.format(tests=HELPERS))
