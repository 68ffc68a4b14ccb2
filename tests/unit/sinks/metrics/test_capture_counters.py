"""A capture's counters as metrics: of what becomes of ranges and spans."""

from __future__ import annotations

from typing import Any

import pytest
from measured import ADD, TEMPORALITIES, Counted, Ours, batch_of, counts, reader, values

from otel_recfn.sinks.metrics.sink import MetricsSink

pytestmark = pytest.mark.one_python

DELTA, CUMULATIVE = TEMPORALITIES


class TestCounters:
    def test_what_became_of_ranges_and_spans(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        counted.set(exported=10, unsampled=5, dropped__buffer_full=1, dropped__queue_full=3, chrome_trace__dropped__error=2)
        one = ours.readers[0]
        assert values(one, "recfn.ranges") == {"exported": 10, "unsampled": 5, "dropped": 4}
        lost = {"dropped.buffer_full": 1, "dropped.queue_full": 3, "chrome_trace.dropped.error": 2}
        assert values(one, "recfn.lost") == lost
        counted.set(exported=11, folded=90, failed=1)
        assert values(one, "recfn.ranges") == {"exported": 11, "folded": 90, "unsampled": 5, "failed": 1, "dropped": 4}
        assert values(one, "recfn.lost") == {**lost, "failed": 1}

    def test_what_waits(self, ours: Ours) -> None:
        ours.sink.report_from(Counted(waiting=3))
        assert values(ours.readers[0], "recfn.queue.size") == {"spans": 3}

    def test_what_was_before_does_not_count(self, ours: Ours) -> None:
        counted = Counted(dropped__error=100)
        ours.sink.report_from(counted)
        counted.set(dropped__error=103)
        assert values(ours.readers[0], "recfn.lost") == {"dropped.error": 3}

    @pytest.mark.parametrize("temporality", TEMPORALITIES)
    def test_they_never_go_back_from_one_capture_to_the_next(self, temporality: Any) -> None:
        ours = Ours([reader(temporality)])
        told = []
        for spans in (10, 4, 7):
            counted = Counted()
            sink = MetricsSink(ours.provider)
            sink.report_from(counted)
            counted.set(exported=spans)
            sink.write(batch_of([("aten::add", 0, 1)] * spans))
            sink.close(0.0)
            found = counts(ours.readers[0])
            told.append((values(ours.readers[0], "recfn.ranges").get("exported", 0), found[ADD]))
        assert [count for _, count in told] == ([10, 4, 7] if temporality == DELTA else [10, 14, 21])

    def test_sums_that_are_left_reach_the_readers(self, ours: Ours) -> None:
        ours.record([("aten::add", 0, 1)] * 4)
        ours.sink.close(0.0)
        ours.sink.close(0.0)
        assert counts(ours.readers[0]) == {ADD: 4}
        assert counts(ours.readers[0]) == {ADD: 4}
