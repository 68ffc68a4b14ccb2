"""A capture's counters as metrics: of what becomes of ranges and spans."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from measured import ADD, TEMPORALITIES, Counted, Ours, batch_of, counts, reader, values

from otel_recfn.sinks.metrics.pipeline import Report
from otel_recfn.sinks.metrics.sink import MetricsSink

pytestmark = pytest.mark.one_python

DELTA, CUMULATIVE = TEMPORALITIES


class TestCounters:
    def test_what_became_of_ranges_and_spans(self, ours: Ours) -> None:
        counted = Counted()
        ours.sink.report_from(counted)
        unsampled = {"spans__unsampled": 3, "recorder__unsampled": 2}
        counted.set(spans__spans=12, spans__roots=2, recorder__dropped=1, spans__queue_dropped=3, **unsampled)
        one = ours.readers[0]
        assert values(one, "recfn.ranges") == {"span": 10, "unsampled": 5, "dropped": 4}
        assert values(one, "recfn.lost") == {"recorder.dropped": 1, "spans.queue_dropped": 3}
        counted.set(spans__spans=12, spans__roots=2, spans__folded=90, spans__spans_exported=11, spans__spans_failed=1)
        assert values(one, "recfn.ranges") == {"span": 10, "folded": 90, "unsampled": 5, "dropped": 4}
        assert values(one, "recfn.spans") == {"exported": 11, "failed": 1}

    def test_what_waits(self, ours: Ours) -> None:
        ours.sink.report_from(Counted(spans__queued=7, spans__spans_pending=3))
        one = ours.readers[0]
        assert values(one, "recfn.queue.ranges") == {"spans": 7}
        assert values(one, "recfn.queue.spans") == {"exporters": 3}

    def test_what_was_before_does_not_count(self, ours: Ours) -> None:
        counted = Counted(recorder__dropped=100)
        ours.sink.report_from(counted)
        counted.set(recorder__dropped=103)
        assert values(ours.readers[0], "recfn.lost") == {"recorder.dropped": 3}

    @pytest.mark.parametrize("temporality", TEMPORALITIES)
    def test_they_never_go_back_from_one_capture_to_the_next(self, temporality: Any) -> None:
        ours = Ours([reader(temporality)])
        told = []
        for spans in (10, 4, 7):
            counted = Counted()
            sink = MetricsSink(ours.provider)
            sink.report_from(counted)
            counted.set(spans__spans=spans)
            sink.write(batch_of([("aten::add", 0, 1)] * spans))
            sink.close(0.0)
            assert sink.counters()["counted"] == spans
            found = counts(ours.readers[0])
            told.append((values(ours.readers[0], "recfn.ranges").get("span", 0), found[ADD]))
        assert [count for _, count in told] == ([10, 4, 7] if temporality == DELTA else [10, 14, 21])

    def test_a_capture_that_ended_is_not_kept(self, ours: Ours) -> None:
        counted = Counted()
        sink = MetricsSink(ours.provider)
        sink.report_from(counted)
        counted.set(spans__spans=3)
        sink.close(0.0)
        gone = weakref.ref(counted), weakref.ref(sink)
        del counted, sink
        gc.collect()
        assert [one() for one in gone] == [None, None]
        assert values(ours.readers[0], "recfn.ranges") == {"span": 3, "dropped": 0}
        assert values(ours.readers[0], "recfn.queue.ranges") == {}

    def test_counters_that_raise_are_told_once_and_cost_nothing_else(
        self, ours: Ours, caplog: pytest.LogCaptureFixture
    ) -> None:
        def report() -> Report:
            raise OSError("no counters")

        ours.sink.report_from(report)
        ours.record([("aten::add", 0, 1)])
        assert counts(ours.readers[0]) == {ADD: 1}
        assert counts(ours.readers[0]) == {ADD: 1}
        assert len(caplog.records) == 1

    def test_sums_that_are_left_reach_the_readers(self, ours: Ours) -> None:
        ours.record([("aten::add", 0, 1)] * 4)
        ours.sink.close(0.0)
        ours.sink.close(0.0)
        assert counts(ours.readers[0]) == {ADD: 4}
        assert counts(ours.readers[0]) == {ADD: 4}
