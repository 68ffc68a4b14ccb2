"""A part of a plan has a part of every column, whatever columns there are; what a plan looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from opentelemetry.trace import SpanContext

from batches import context, make_batch
from otel_recfn.batches.links import LinkFinder
from otel_recfn.batches.span_plan import SpanPlan, fates_of, plan_spans
from otel_recfn.model.scope import RecordScope
from otel_recfn.model.tables import SpanContextRef


def span_of(of: SpanContextRef) -> SpanContext:
    return SpanContext(of.trace_id, of.span_id, is_remote=False)


def planned(rows: int) -> SpanPlan:
    batch = make_batch([{"context": context(5, 7 + number % 2)} for number in range(rows)])
    return plan_spans(batch, fates_of(batch), LinkFinder().match(batch), span_of, lambda root: None)


def test_a_part_has_the_same_rows_of_every_column() -> None:
    plan = planned(10)
    part: dict[str, Any] = plan.part(slice(3, 7))._asdict()
    for name, whole in plan._asdict().items():
        if name in ("batch", "fate", "spans_above"):
            assert part[name] is whole
        else:
            assert np.array_equal(part[name], whole[3:7]), name


class Looked(Sequence[SpanContextRef]):
    """Contexts of which only those may be looked at that are asked for by their place."""

    def __init__(self, contexts: Sequence[SpanContextRef]) -> None:
        self._contexts, self.at = contexts, set[int]()

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, place: Any) -> Any:
        self.at.add(place)
        return self._contexts[place]


def test_contexts_of_forward_ranges_that_nothing_links_to_are_not_looked_at() -> None:
    contexts = [context(1, number + 1) for number in range(500)]
    forward = [
        {"event_id": number + 1, "sequence_nr": number, "context": one, "root": number + 1}
        for number, one in enumerate(contexts)
    ]
    backward = {"event_id": 900, "scope": RecordScope.BACKWARD_FUNCTION, "sequence_nr": 7, "forward_thread_id": 1}
    links = LinkFinder()
    links.match(make_batch(forward))
    batch = make_batch([{**backward, "context": context(2, 9)}])
    found = links.match(batch)
    looked = Looked(found.contexts)
    plan = plan_spans(batch, fates_of(batch), found._replace(contexts=looked), span_of, lambda root: None)
    assert plan.spans_above[int(plan.linked_above[0])].span_id == contexts[7].span_id
    assert len(looked.at) == 1
