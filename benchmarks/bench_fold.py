"""What folding costs a row, up to decided units; beside it a capture's tree, the metrics, and SDK
spans.

    python benchmarks/bench_fold.py [steps]

Training steps of a small transformer, each a unit, as in a loop that opens a span for each, and
units as a service has, in batches of several sizes, with the budgets that are there unless somebody
asks for others (`folding_stage.py`). Processor time. The fastest of some rounds counts; the spans
are measured on fewer rows. "turns" are waits for the GIL beside a busy thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lib.command_line import read_number, sized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from lib.fold_parts import metrics, ns_a_row, tree
from lib.folding_stage import batches_of, fastest_stage, small_units, turns_a_batch
from lib.training_steps import Row, paths, program
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.stage import Stage
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import ProviderResolver

STEPS = sized(100, 1)
SLOW_SIDES_STEPS = 10
ROUNDS = sized(7, 1)
SERVICE_UNITS = sized(250, 3)
ROWS_PER_BATCH = 20_000
MAX_BUSY_BATCHES = sized(20, 1)
"""Beside a busy thread, each wait for the GIL takes 5 ms."""


class Discard(SpanProcessor):
    """A processor that does nothing, so that only making a span is measured."""

    def on_end(self, span: ReadableSpan) -> None:
        pass


def batch_of(rows: Sequence[Row]) -> Batch:
    """The same rows as a sink gets them, below a span of the program."""
    return make_batch(
        [
            {
                "event_id": row.event_id,
                "name": row.name,
                "parent": row.parent,
                "start_ns": row.start_ns,
                "end_ns": row.start_ns + row.duration_ns,
                "thread": MAIN_THREAD if row.event_id >> 40 == 1 else WORKER_THREAD,
                "context": context(0xABC, 0xDEF),
            }
            for row in rows
        ]
    )


def spans(batch: Batch) -> float:
    """Nanoseconds a row, of a span for every row that a processor is given."""
    provider = TracerProvider(shutdown_on_exit=False)
    processor = Discard()
    target = ProviderResolver(provider).resolve()
    assert target is not None
    began = time.thread_time_ns()
    plan, _ = Stage(0).plan(batch)
    for span in SpanMapper(target).spans(plan):
        processor.on_end(span)
    return (time.thread_time_ns() - began) / len(batch)


def report_parts(rows: Sequence[Row], batch: Batch) -> None:
    """One line for each part."""
    many = batches_of(rows, ROWS_PER_BATCH)
    print(f"\n{'':<26}{'ns a row':>15}")
    print(f"{'tree, of a capture':<26}{ns_a_row(tree, many, ROUNDS):>15,.0f}")
    print(f"{'metrics':<26}{ns_a_row(metrics, many, ROUNDS):>15,.0f}")
    print(f"{'SDK spans of all rows':<26}{min(spans(batch) for _ in range(2)):>15,.0f}")


def report_stage(title: str, rows: Sequence[Row], sizes: Sequence[int]) -> None:
    """One line for each size of batches."""
    print(f"\n{title}, in batches")
    print(f"{'':<26}{'add, ns/row':>15}{'decide, ns/row':>16}{'in all':>10}{'turns/batch':>13}")
    for size in sizes:
        batches = batches_of(rows, size)
        cost = fastest_stage(batches, ROUNDS)
        turns = turns_a_batch(batches[:MAX_BUSY_BATCHES])
        times = f"{cost.added:>15,.0f}{cost.decided:>16,.0f}{cost.in_all:>10,.0f}"
        print(f"of {size:<23,}{times}{turns:>13,.1f}")


def main() -> None:
    """Measures every side in turns and prints the fastest of each."""
    steps = read_number(__doc__, "steps", STEPS)
    rows = program(steps)
    few = [row for row in rows if row.unit < SLOW_SIDES_STEPS]
    step_rows = [row for row in rows if row.unit == 0]
    print(
        f"{len(rows):,} rows, {steps} steps of {len(step_rows):,} ranges on {paths(step_rows)}"
        " paths"
    )
    batch = batch_of(few)
    report_parts(rows, batch)
    report_stage("each step a unit", rows, (20_000, 3_000, 300))
    service = small_units(SERVICE_UNITS)
    report_stage(f"{SERVICE_UNITS} units of 60 to 1,100 ranges", service, (30_000, 3_000, 300))


if __name__ == "__main__":
    main()
