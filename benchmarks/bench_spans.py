"""What a span costs: built from a row and handed to a processor, against a live SDK span with the
same attributes.

python benchmarks/bench_spans.py [repeats]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from lib.command_line import read_number, sized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from helpers.batches import MAIN_THREAD, context, make_batch
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RecordScope, make_event_id
from otel_recfn.sinks.spans.sink import SpansSink

ROWS = sized(8_000, 160)
FAN_OUT = 8
REPEATS = sized(7, 1)


class Discard(SpanProcessor):
    """A processor that does nothing, so that only making a span is measured."""

    def on_end(self, span: ReadableSpan) -> None:
        pass


def sample_batch() -> Batch:
    """Operators, eight below each parent, inside a span of the program."""
    rows = []
    for number in range(1, ROWS + 1):
        group = (number - 1) // FAN_OUT * FAN_OUT + FAN_OUT
        parent = 0 if number == group else make_event_id(1, group)
        rows.append(
            {
                "event_id": make_event_id(1, number),
                "name": f"aten::op_{number % 50}",
                "parent": parent,
                "handle": number,
                "sequence_nr": number,
                "context": context(0xABC, 0xDEF),
            }
        )
    return make_batch(rows)


def ours(batch: Batch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Discard())
    sink = SpansSink(provider)
    sink.write(batch)
    assert sink.counters()["recorded"] == len(batch)


def live_sdk_spans(batch: Batch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Discard())
    tracer = provider.get_tracer("otel_recfn")
    above = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, False, trace.TraceFlags(1)))
    parent = trace.set_span_in_context(above)
    for number in range(1, ROWS + 1):
        attributes = {
            "recfn.scope": RecordScope.FUNCTION.name,
            "recfn.thread_id": 1,
            "thread.id": MAIN_THREAD.ident,
            "thread.name": MAIN_THREAD.name,
            "recfn.event_id": number,
            "recfn.handle": number,
            "recfn.sequence_nr": number,
        }
        tracer.start_span(f"aten::op_{number % 50}", context=parent, attributes=attributes).end()


def best_ns(work: Callable[[Batch], None], batch: Batch, repeats: int) -> float:
    """Nanoseconds per span, the best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        work(batch)
        best = min(best, time.perf_counter_ns() - start)
    return best / ROWS


def main() -> None:
    repeats = read_number(__doc__, "repeats", REPEATS)
    batch = sample_batch()
    mine = best_ns(ours, batch, repeats)
    sdk = best_ns(live_sdk_spans, batch, repeats)
    print(f"span from a row, ours     {mine:8.0f} ns")
    print(f"live SDK span, start+end  {sdk:8.0f} ns")
    print(f"ratio                     {sdk / mine:8.1f}")


if __name__ == "__main__":
    main()
