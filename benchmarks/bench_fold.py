"""What folding costs a row: the plan, the fold, a capture's tree and the metrics; beside them, SDK spans.

    python benchmarks/bench_fold.py [steps]

Training steps of a small transformer, each a unit, as in a loop that opens a span for each. Processor time. Every side takes
its turn in each round, and the fastest counts; the spans are measured on fewer rows.

Then the fold by itself ("added" is `add_planned`, "in all" also `finish`), and what the drain thread does with batches of
several sizes up to the spans that it makes (`folding_stage.py`), with the budgets that are there unless somebody asks for
others.
"turns" are waits for the GIL beside a busy thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from command_line import number_given

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from fold_parts import metrics, ns_a_row, plan, tree
from folding_stage import batches_of, fastest_stage, small_units, turns_a_batch
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from training_steps import Row, paths, program

from batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.fold.units import Fold, PlannedRanges
from otel_recfn.model.batch import Batch
from otel_recfn.sinks.spans.sink import SpansSink

STEPS = 100
STEPS_OF_SLOW_SIDES = 10
ROUNDS = 7
UNITS_OF_A_SERVICE = 250
ROWS_PER_BATCH = 20_000
MOST_BATCHES_BESIDE = 20
"""Beside a busy thread, each wait for the GIL takes 5 ms."""
MOST_ROWS = 100_000
NOTHING_SHOWN = np.zeros(0, np.uint64)
KEPT_AT_MOST = 1000
"""Of a unit that may be unusual: who is ordinary is known when it has ended."""


def planned(rows: Sequence[Row], units: int) -> list[PlannedRanges]:
    """The rows in batches, their units put together to so many."""
    steps = rows[-1].unit + 1
    return [of_units(batch, steps, units) for batch in batches_of(rows, ROWS_PER_BATCH)]


def of_units(batch: Batch, steps: int, units: int) -> PlannedRanges:
    step = np.array([max(0, one.span_id - 1) for one in batch.contexts])
    unit, name = (step * units // steps).astype(np.uint32), np.arange(len(batch.names), dtype=np.uint32)
    return PlannedRanges(batch, np.arange(len(batch)), batch.parent, batch.context.astype(np.int64), unit, name, NOTHING_SHOWN)


class Cost(NamedTuple):
    """Nanoseconds a row."""

    added: float
    in_all: float


def fold(batches: Sequence[PlannedRanges], budget: int) -> Cost:
    """As the drain thread does it: batch by batch, and every unit finished when the next one has begun, or when it is full."""
    most, added_ns, done, given = max(budget, KEPT_AT_MOST), 0, 0, 0
    folds = Fold(most, 0, 4 * most)  # as `Folding` asks for
    total = -time.thread_time_ns()
    for batch in batches:
        began = time.thread_time_ns()
        folds.add_planned(batch, given)
        added_ns += time.thread_time_ns() - began
        last, given = int(batch.unit[-1]), given + len(batch.row)
        ended = list(range(done, last))
        folds.finish(ended, [budget] * len(ended), [0] * len(ended), [False] * len(ended))
        if folds.rows([last])[0] >= MOST_ROWS:
            folds.finish([last], [budget], [0], [True])
        done = last
    folds.finish([done], [budget], [0], [False])
    total += time.thread_time_ns()
    return Cost(added_ns / given, total / given)


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


def spans(batch: Batch) -> Cost:
    """Of a span for every row."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Discard())
    sink = SpansSink(provider)
    began = time.thread_time_ns()
    sink.write(batch)
    taken = (time.thread_time_ns() - began) / len(batch)
    assert sink.counters()["spans"] == len(batch)
    return Cost(taken, taken)


def fastest(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.in_all)


def report(title: str, rows: Sequence[Row], units: bool, budget: int, batch: Batch) -> None:
    """One line per side, with how many times faster than making spans it is."""
    many = planned(rows, rows[-1].unit + 1 if units else 1)
    sides: dict[str, Callable[[], Cost]] = {
        "fold": lambda: fold(many, budget),
        "SDK spans of all rows": lambda: spans(batch),
    }
    came: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, side in sides.items():
            if number < 2 or name == "fold":
                came[name].append(side())
    peer = fastest(came["SDK spans of all rows"]).in_all
    print(f"\n{title}, {budget} spans for a unit")
    print(f"{'':<26}{'added, ns/row':>15}{'in all, ns/row':>16}{'x spans':>10}")
    for name, costs in came.items():
        best = fastest(costs)
        print(f"{name:<26}{best.added:>15,.0f}{best.in_all:>16,.0f}{peer / best.in_all:>10,.1f}")


def report_parts(rows: Sequence[Row], batch: Batch) -> None:
    """One line for each part."""
    many, ranges = batches_of(rows, ROWS_PER_BATCH), planned(rows, rows[-1].unit + 1)
    print(f"\n{'':<26}{'ns a row':>15}")
    print(f"{'plan':<26}{ns_a_row(plan, many, ROUNDS):>15,.0f}")
    print(f"{'fold':<26}{min(fold(ranges, 50).in_all for _ in range(ROUNDS)):>15,.0f}")
    print(f"{'tree, of a capture':<26}{ns_a_row(tree, many, ROUNDS):>15,.0f}")
    print(f"{'metrics':<26}{ns_a_row(metrics, many, ROUNDS):>15,.0f}")
    print(f"{'SDK spans of all rows':<26}{spans(batch).in_all:>15,.0f}")


def report_stage(title: str, rows: Sequence[Row], sizes: Sequence[int]) -> None:
    """One line for each size of batches."""
    print(f"\n{title}, in batches")
    print(f"{'':<26}{'plan, ns/row':>15}{'add, ns/row':>16}{'decide, ns/row':>16}{'in all':>10}{'turns/batch':>13}")
    for size in sizes:
        batches = batches_of(rows, size)
        cost, turns = fastest_stage(batches, ROUNDS), turns_a_batch(batches[:MOST_BATCHES_BESIDE])
        times = f"{cost.planned:>15,.0f}{cost.added:>16,.0f}{cost.decided:>16,.0f}{cost.in_all:>10,.0f}"
        print(f"of {size:<23,}{times}{turns:>13,.1f}")


def main() -> None:
    """Measures every side in turns and prints the fastest of each."""
    steps = number_given(__doc__, "steps", STEPS)
    rows = program(steps)
    few = [row for row in rows if row.unit < STEPS_OF_SLOW_SIDES]
    of_a_step = [row for row in rows if row.unit == 0]
    print(f"{len(rows):,} rows, {steps} steps of {len(of_a_step):,} ranges on {paths(of_a_step)} paths")
    batch = batch_of(few)
    report_parts(rows, batch)
    for budget in (1000, 50):
        report("each step a unit", rows, True, budget, batch)
    report("one unit", rows, False, 1000, batch)
    report_stage("each step a unit", rows, (20_000, 3_000, 300))
    service = small_units(UNITS_OF_A_SERVICE)
    report_stage(f"{UNITS_OF_A_SERVICE} units of 60 to 1,100 ranges", service, (30_000, 3_000, 300))


if __name__ == "__main__":
    main()
