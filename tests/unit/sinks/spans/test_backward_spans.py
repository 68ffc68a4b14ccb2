"""What is exported of backward nodes: one span each with the range around it, with a link to what
it is the backward of.

    request ──[outer: forward, ...]──[backward──[evaluate_function: node──[node──[operator]]]]
"""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import SpanContext
from spans_harness import REQUEST, Harness

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn.batches.stage import Stage
from otel_recfn.model.events import NODES_PREFIX, EventFlag, RecordScope, make_event_id
from otel_recfn.sinks.otlp.encoding import OtlpMapper
from otel_recfn.sinks.spans.budgets import EVERY_RANGE, Volume
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_hook import Hook

pytestmark = pytest.mark.one_python

MS = 1_000_000
EXPOSED = int(EventFlag.EXPOSED)
OUTER, FORWARD, BACKWARD, AROUND, NODE, OPERATOR, LATE = [
    make_event_id(1, number) for number in range(1, 8)
]
"""Event ids, in the order in which the ranges begin."""
Row = dict[str, Any]


def row(event_id: int, name: str, parent: int, start_ms: float, ms: float, **more: Any) -> Row:
    start_ns = BASE_NS + int(start_ms * MS)
    times = {"start_ns": start_ns, "end_ns": start_ns + int(ms * MS)}
    return {
        "event_id": event_id,
        "name": name,
        "parent": parent,
        "context": REQUEST,
        **times,
        **more,
    }


def node_rows(parent: int = 0, node_flags: int = 0, start_ms: float = 50) -> list[Row]:
    """A backward node, what it calls, and the range around it, in the order of their ends.

    ``node_flags`` are flags of the node.
    """
    numbers = {"sequence_nr": 7, "forward_thread_id": MAIN_THREAD.thread_id}
    scope = {"scope": RecordScope.BACKWARD_FUNCTION, "flags": node_flags}
    return [
        row(OPERATOR, "aten::mul", NODE, start_ms + 2, 20),
        row(NODE, "MulBackward0", AROUND, start_ms + 1, 22, **scope, **numbers),
        row(AROUND, NODES_PREFIX + "MulBackward0", parent, start_ms, 25, **numbers),
    ]


def by_name(spans: list[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


@pytest.mark.parametrize("node_flags", [0, EXPOSED], ids=["seen by nobody", "seen by the program"])
@pytest.mark.parametrize("parent", [AROUND, NODE])
def test_what_comes_after_a_node_was_sent_is_a_child_of_its_span(
    node_flags: int, parent: int
) -> None:
    harness = Harness(volume=Volume(50))
    sent = by_name(harness.write(*node_rows(node_flags=node_flags)))["MulBackward0"]
    late = row(LATE, "aten::add", parent, 55, 30, thread=WORKER_THREAD)
    (span,) = harness.write(late)
    assert span.parent == sent.context


def forward_rows(outer_ms: float = 40, forward_ms: float = 20) -> list[Row]:
    return [
        row(FORWARD, "aten::mul_", OUTER, 1, forward_ms, sequence_nr=7),
        row(OUTER, "layer", 0, 0, outer_ms, scope=RecordScope.USER_SCOPE),
    ]


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_a_node_links_to_the_span_of_its_forward() -> None:
    spans = by_name(Harness(volume=Volume(50)).write(*forward_rows(), *node_rows()))
    assert links_of(spans["MulBackward0"]) == [spans["aten::mul_"].context.span_id]


def test_a_node_links_to_the_nearest_sent_span_around_a_forward_that_has_none() -> None:
    """A forward of a hundredth of a millisecond is too short for one."""
    spans = by_name(Harness(volume=Volume(50)).write(*forward_rows(forward_ms=0.01), *node_rows()))
    assert "aten::mul_" not in spans
    assert links_of(spans["MulBackward0"]) == [spans["layer"].context.span_id]


def test_a_node_links_to_the_sum_that_its_forward_is_part_of() -> None:
    """Three of a name are one sum, where three spans are too many."""
    repeated = [
        {**forward_rows()[0], "event_id": OUTER + 100 + number, "sequence_nr": 6 - number}
        for number in range(2)
    ]
    forward, outer = forward_rows()
    spans = by_name(Harness(volume=Volume(5)).write(forward, *repeated, outer, *node_rows()))
    assert links_of(spans["MulBackward0"]) == [spans["aten::mul_ (folded)"].context.span_id]


def test_a_forward_directly_in_the_unit_that_has_no_span_is_linked_by_no_node() -> None:
    """The nearest span around it is the node's own parent."""
    short = row(FORWARD, "aten::mul_", 0, 1, 0.01, sequence_nr=7)
    spans = by_name(Harness(volume=Volume(50)).write(short, *node_rows()))
    assert "aten::mul_" not in spans
    node = spans["MulBackward0"]
    assert node.parent is not None
    assert (node.parent.span_id, node.links) == (REQUEST.span_id, ())


def test_a_forward_of_another_unit_that_has_no_span_is_linked_by_the_span_above_it() -> None:
    before = REQUEST._replace(span_id=99)
    harness = Harness(volume=Volume(50))
    harness.write(*[{**each, "context": before} for each in forward_rows(forward_ms=0.01)])
    spans = by_name(harness.write(*node_rows()))
    assert links_of(spans["MulBackward0"]) == [99]


@pytest.mark.parametrize("volume", [Volume(50), EVERY_RANGE], ids=["folded", "every range"])
def test_a_node_in_its_forward_is_a_child_and_links_to_nothing(volume: Volume) -> None:
    forward = row(FORWARD, "Checkpoint", 0, 0, 90, sequence_nr=7)
    spans = Harness(volume=volume).write(*node_rows(FORWARD), forward)
    nodes = [span for span in spans if span.name.endswith("MulBackward0")]
    own = by_name(spans)
    (child,) = [each for each in nodes if each.parent == own["Checkpoint"].context]
    assert child.links == ()


def dropping(*names: str) -> Hook:
    return lambda event, attributes: event.name not in names


def test_no_link_leads_to_a_span_that_the_hook_drops_even_if_it_is_asked_later() -> None:
    """The forward is the shorter one, and so comes after the node."""
    harness = Harness(volume=Volume(50), hook=dropping("aten::mul_"))
    spans = by_name(harness.write(*forward_rows(forward_ms=5), *node_rows()))
    assert "aten::mul_" not in spans
    assert links_of(spans["MulBackward0"]) == [spans["layer"].context.span_id]


def test_no_link_leads_to_the_parent_that_a_node_has_after_the_hook_dropped_others() -> None:
    harness = Harness(volume=Volume(50), hook=dropping("aten::mul_", "layer"))
    spans = by_name(harness.write(*forward_rows(outer_ms=24), *node_rows()))
    node = spans["MulBackward0"]
    assert node.parent is not None
    assert (node.parent.span_id, node.links) == (REQUEST.span_id, ())


@pytest.mark.parametrize("forward_ms", [20, 0.01])
def test_bytes_have_the_same_links_as_spans_of_the_sdk(forward_ms: float) -> None:
    stage = Stage(50)
    stage.add(make_batch([*forward_rows(forward_ms=forward_ms), *node_rows()]))
    (unit,) = stage.units()
    above = SpanContext(REQUEST.trace_id, REQUEST.span_id, is_remote=False)
    plan = stage.decide([(unit.unit, 50)], [above], is_partial=False).plan
    target = ProviderResolver(TracerProvider(shutdown_on_exit=False)).resolve()
    assert target is not None
    made = SpanMapper(target).spans(plan)
    fields = ScopeSpans.FromString(bytes(OtlpMapper(target).spans(plan).data)).spans
    assert [[link.context.span_id for link in span.links] for span in made] == [
        [int.from_bytes(link.span_id, "big") for link in span.links] for span in fields
    ]
    assert any(span.links for span in made)
