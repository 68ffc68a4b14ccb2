"""A part of a plan has a part of every column, whatever columns there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from batches import context, make_batch
from otel_recfn.batches.links import ForwardBackwardLinks
from otel_recfn.batches.span_plan import SpanPlan, fates_of, plan_spans
from otel_recfn.model.tables import SpanContextRef


def planned(rows: int) -> SpanPlan:
    from opentelemetry.trace import SpanContext

    def span_of(of: SpanContextRef) -> SpanContext:
        return SpanContext(of.trace_id, of.span_id, is_remote=False)

    batch = make_batch([{"context": context(5, 7 + number % 2)} for number in range(rows)])
    return plan_spans(batch, fates_of(batch), ForwardBackwardLinks().match(batch), span_of, lambda root: None)


def test_a_part_has_the_same_rows_of_every_column() -> None:
    plan = planned(10)
    part: dict[str, Any] = plan.part(slice(3, 7))._asdict()
    for name, whole in plan._asdict().items():
        if name in ("batch", "fate", "spans_above"):
            assert part[name] is whole
        else:
            assert np.array_equal(part[name], whole[3:7]), name
