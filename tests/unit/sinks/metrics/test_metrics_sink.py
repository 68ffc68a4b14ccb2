"""The metrics sink: which rows it counts, as which series, also while readers collect."""

from __future__ import annotations

import inspect
import os
import threading
from functools import partial
from typing import Any

import pytest
from measured_metrics import (
    ADD,
    TEMPORALITIES,
    Counted,
    Ours,
    batch_of,
    counts,
    points,
    reader,
    values,
    view,
)
from opentelemetry.sdk.metrics.view import View

from helpers.batches import make_batch
from helpers.forked_work import fork, in_child
from helpers.timeouts import PATIENCE_S
from otel_recfn.model.events import EventFlag, RowKind
from otel_recfn.sinks.metrics import instruments
from otel_recfn.sinks.metrics.sums import SumColumn

pytestmark = pytest.mark.one_python
DELTA, CUMULATIVE = TEMPORALITIES
OVERFLOW = (("otel.metric.overflow", True),)


class TestWhatCounts:
    def test_ranges_also_those_that_are_open_at_the_end(self, ours: Ours) -> None:
        rows = [
            {"name": "aten::add"},
            {"name": "mark", "kind": RowKind.MARK},
            {"name": "open", "flags": EventFlag.PARTIAL},
            {"name": "tried out", "flags": EventFlag.IN_COMPILATION},
            {"name": "turned", "start_ns": 10, "end_ns": 5},
        ]
        ours.sink.write(make_batch(rows))
        found = points(ours.readers[0])
        assert set(found) == {
            ADD,
            *[(("recfn.name", name), ("recfn.scope", "FUNCTION")) for name in ("open", "turned")],
        }
        assert found[ADD]["total"] == 500e-9

    def test_a_name_that_utf8_can_not_hold(self, ours: Ours) -> None:
        ours.record([("bad \ud800", 0, 1)])
        assert list(points(ours.readers[0])) == [
            (("recfn.name", "bad \\ud800"), ("recfn.scope", "FUNCTION"))
        ]

    def test_series_beyond_the_bound_are_one(self) -> None:
        ours = Ours([reader(CUMULATIVE)], max_series=3)
        for first in (0, 5):
            ours.record([(f"op {n}", 0, 100) for n in range(first, first + 10)])
            found = counts(ours.readers[0])
        assert len(found) == 4
        assert found[OVERFLOW] == 20 - 3

    def test_the_bound_of_the_sdk_holds_too(self) -> None:
        if "aggregation_cardinality_limit" not in inspect.signature(View).parameters:
            pytest.skip("this SDK has no bound")
        ours = Ours([reader(DELTA)], views=view("explicit", aggregation_cardinality_limit=2))
        for _ in range(2):
            ours.record([(f"op {n}", 0, 100 + n) for n in range(10)])
            found = counts(ours.readers[0])
            assert sum(found.values()) == 10
            assert found[OVERFLOW] == 8


class TestForks:
    def test_a_child_counts_its_own(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        counted.set(exported=5)
        ours.record([("aten::add", 0, 1)] * 5)
        assert values(ours.readers[0], "recfn.ranges")["exported"] == 5
        ours.record([("aten::add", 0, 1)] * 50)

        def work() -> None:
            fresh = ours.sink.after_fork_in_child()
            assert fresh is not None
            counted.set(exported=2)
            fresh.write(batch_of([("aten::add", 0, 1)] * 3))
            found = counts(ours.readers[0])
            assert found == {ADD: 8}, found
            assert values(ours.readers[0], "recfn.ranges")["exported"] == 5 + 2

        in_child(work)
        assert counts(ours.readers[0]) == {ADD: 55}

    def test_a_fork_waits_for_a_callback(self, ours: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
        inside = threading.Event()
        forked = threading.Event()
        waited = []
        # The moment in which a reader's thread is in our callback.
        hand = instruments.Instruments._add_to_streams  # noqa: SLF001

        def slow(*arguments: Any) -> None:
            inside.set()
            waited.append(not forked.wait(0.1))
            hand(*arguments)

        monkeypatch.setattr(instruments.Instruments, "_add_to_streams", slow)
        ours.record([("aten::add", 0, 1)] * 5)
        collecting = threading.Thread(target=ours.readers[0].collect)
        collecting.start()
        assert inside.wait(PATIENCE_S)
        child = fork(partial(self.write_in_child, ours))
        forked.set()
        collecting.join(PATIENCE_S)
        assert waited == [True]
        assert os.waitpid(child, 0)[1] == 0

    def write_in_child(self, ours: Ours) -> None:
        """Whatever lock of the SDK the reader's thread held."""
        fresh = ours.sink.after_fork_in_child()
        assert fresh is not None
        fresh.write(batch_of([("aten::add", 0, 1)] * 3))
        assert [taken.sums.series[:, SumColumn.COUNT].sum() for taken in fresh.take()] == [3]


def test_nothing_is_lost_while_readers_collect_and_rows_come() -> None:
    ours = Ours([reader(DELTA), reader(DELTA), reader(CUMULATIVE)], views=view("exponential"))
    stop = threading.Event()
    seen = [0, 0]

    def collect(which: int) -> None:
        while not stop.is_set():
            seen[which] += sum(counts(ours.readers[which]).values())

    threads = [threading.Thread(target=collect, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for step in range(300):
        ours.record([("aten::add", 0, step), (f"op {step % 7}", 0, 10_000 * step)])
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    rest = [sum(counts(one).values()) for one in ours.readers]
    assert [seen[0] + rest[0], seen[1] + rest[1], rest[2]] == [600, 600, 600]
