"""Rows to spans: whose child each is, which give none, their resource, and counters that
balance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spans_harness import BACKWARD, FORWARD, REQUEST, Harness, assert_balanced, spans_sink

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD, context, make_batch
from helpers.timeouts import PATIENCE_S
from otel_recfn.batches.outcomes import Outcome
from otel_recfn.model.batch import NO_CONTEXT, SpanContextRef, Track
from otel_recfn.model.events import ContextFlag, EventFlag, RowKind, make_event_id
from otel_recfn.sinks.spans.every_range import EveryRange
from otel_recfn.sinks.spans.span_hook import FOLDED_COUNT, FOLDED_NS
from otel_recfn.support.span_ids import span_id


class TestTree:
    def test_top_level_is_below_the_current_span(self) -> None:
        span = Harness().one()
        assert (span.context.trace_id, span.parent.span_id) == (REQUEST.trace_id, REQUEST.span_id)
        assert span.context.span_id == span_id(make_event_id(1, 1))
        assert span.context.trace_flags.sampled
        assert not span.context.is_remote
        assert not span.parent.is_remote

    def test_child_is_below_its_parent_which_comes_later(self) -> None:
        parent = make_event_id(1, 9)
        harness = Harness()
        child, sibling = harness.write(
            *[{"parent": parent, "root": parent, "context": REQUEST, "event_id": n} for n in (1, 2)]
        )
        (above,) = harness.write({"event_id": parent, "context": REQUEST})
        assert child.parent == sibling.parent == above.context

    def test_trace_state_is_repeated(self) -> None:
        ref = context(trace_id=0x51, span_id=0x52)._replace(trace_state="other=y,vendor=x")
        parent = make_event_id(1, 2)
        child, above = Harness().write(
            {"context": ref, "parent": parent}, {"context": ref, "event_id": parent}
        )
        assert (
            child.context.trace_state.get("vendor")
            == above.context.trace_state.get("vendor")
            == "x"
        )
        assert above.parent.trace_state.get("vendor") == "x"

    def test_without_a_span_below_a_root_of_ours(self) -> None:
        harness = Harness()
        parent = make_event_id(1, 2)
        opened = [{"event_id": parent, "start_ns": BASE_NS}]
        child, above = harness.write(
            {"parent": parent}, {"event_id": parent}, opened=opened, flushes=False
        )
        (root,) = harness.close()
        assert (child.parent, above.parent, root.parent) == (above.context, root.context, None)
        assert root.name == "MainThread"
        assert (root.start_time, root.end_time) == (BASE_NS, above.end_time)
        assert dict(root.attributes) == {
            "recfn.root": True,
            "thread.id": MAIN_THREAD.ident,
            "thread.name": "MainThread",
        }
        assert {span.context.trace_id for span in (child, above, root)} == {root.context.trace_id}

    def test_flush_ends_only_roots_of_threads_that_rest(self) -> None:
        harness = Harness()
        harness.write({}, opened=[{"event_id": make_event_id(1, 1)}])
        still_open = {"event_id": make_event_id(2, 1), "thread": WORKER_THREAD}
        harness.sink.write(
            replace(make_batch([], [still_open]), drained_ns=BASE_NS + 3_000_000_000)
        )
        harness.sink.flush(PATIENCE_S)
        assert harness.sink.counters()["added"] == 1


class TestLinks:
    def test_backward_links_to_forward(self) -> None:
        harness = Harness()
        forward, backward = harness.write(
            {**FORWARD, "context": REQUEST}, {**BACKWARD, "context": REQUEST}
        )
        assert [link.context for link in backward.links] == [forward.context]
        assert backward.attributes["recfn.forward_thread_id"] == MAIN_THREAD.thread_id

    def test_no_link_to_a_forward_without_span(self) -> None:
        harness = Harness()
        unsampled = REQUEST._replace(flags=0)
        (backward,) = harness.write(
            {**FORWARD, "context": unsampled}, {**BACKWARD, "context": REQUEST}
        )
        assert backward.links == ()


class TestNoSpans:
    @pytest.mark.parametrize(
        ("row", "counter"),
        [
            ({"context": REQUEST._replace(flags=0)}, "unsampled"),
            (
                {"context": REQUEST._replace(flags=ContextFlag.SAMPLED | ContextFlag.SUPPRESSED)},
                "unsampled",
            ),
            ({"context": NO_CONTEXT._replace(flags=ContextFlag.SUPPRESSED)}, "unsampled"),
            ({"context": REQUEST, "kind": RowKind.MARK}, None),
        ],
    )
    def test_is_counted(self, row: dict[str, Any], counter: str | None) -> None:
        harness = Harness()
        assert harness.write(row) == []
        assert harness.close() == []
        assert {name: count for name, count in harness.sink.counters().items() if count} == (
            {"recorded": 1, counter: 1} if counter else {}
        )
        assert_balanced(harness.sink.counters())

    def test_sampler_refuses_the_root(self) -> None:
        harness = Harness(sampler=ALWAYS_OFF)
        assert harness.write({}, {}) == []
        counters = harness.sink.counters()
        assert (counters["unsampled"], counters["added"]) == (2, 0)

    def test_limit_refuses_the_root(self) -> None:
        harness = Harness(roots_per_second=0)
        idle_ns = 2_000_000_000
        for number in range(102):
            start_ns = BASE_NS + number * idle_ns
            harness.write(
                {"event_id": number + 1, "start_ns": start_ns},
                opened=[{"event_id": number + 1, "start_ns": start_ns}],
            )
        harness.close()
        counters = harness.sink.counters()
        assert (counters["added"], counters["unsampled"]) == (100, 2)
        assert_balanced(counters)

    def test_no_provider_yet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
        sink = spans_sink()
        sink.write(make_batch([{}]))
        assert sink.flush(PATIENCE_S)
        later = Harness()
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: later.provider)
        sink.write(make_batch([{"context": REQUEST}]))
        sink.close(PATIENCE_S)
        counters = sink.counters()
        assert (counters["unsampled"], counters["exported"]) == (1, 1)
        assert_balanced(counters)

    def test_sdk_disabled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        harness = Harness()
        assert harness.write({"context": REQUEST}) == []
        assert harness.sink.counters()["unsampled"] == 1


def tree_rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows in closing order: trees of ranges, each in some context."""
    refs = st.sampled_from(
        [
            NO_CONTEXT,
            REQUEST,
            REQUEST._replace(flags=0),
            SpanContextRef(0, 0, ContextFlag.SUPPRESSED),
        ]
    )
    tree = st.tuples(
        refs, st.lists(st.integers(0, 5), max_size=6), st.sampled_from([MAIN_THREAD, WORKER_THREAD])
    )
    return st.lists(tree, max_size=6).map(_rows)


def _rows(trees: list[tuple[SpanContextRef, list[int], Track]]) -> list[dict[str, Any]]:
    """Node n of a tree is below node ``parent_span[n] % n``; later nodes close first."""
    rows: list[dict[str, Any]] = []
    for number, (ref, above, thread) in enumerate(trees):
        ids = [
            make_event_id(thread.number, 1 + number * 100 + node) for node in range(len(above) + 1)
        ]
        parents = [0, *(ids[one % (node + 1)] for node, one in enumerate(above))]
        nodes = [
            {"event_id": ids[node], "parent": parents[node], "root": ids[0]}
            for node in range(len(ids))
        ]
        rows += [{**node, "context": ref, "thread": thread} for node in reversed(nodes)]
    return rows


@given(rows=tree_rows(), cut=st.integers(0, 40))
def test_every_sampled_row_is_one_span_in_one_tree(rows: list[dict[str, Any]], cut: int) -> None:
    harness = Harness()
    spans = [
        span for part in (rows[:cut], rows[cut:]) for span in harness.write(*part, flushes=False)
    ] + harness.close()
    events = {
        span.attributes["recfn.event_id"]: span
        for span in spans
        if "recfn.root" not in span.attributes
    }
    expected = [row for row in rows if row["context"] in (NO_CONTEXT, REQUEST)]
    assert len(spans) - len(events) == harness.sink.counters()["added"]
    assert sorted(events) == sorted(row["event_id"] for row in expected)
    ids = {span.context.span_id: span.context.trace_id for span in spans} | {
        REQUEST.span_id: REQUEST.trace_id
    }
    assert len(ids) == len(spans) + 1
    for row in expected:
        span = events[row["event_id"]]
        assert ids[span.parent.span_id] == span.context.trace_id == span.parent.trace_id
        if row["parent"]:
            assert span.parent.span_id == span_id(row["parent"])
        elif row["context"] == REQUEST:
            assert span.parent.span_id == REQUEST.span_id
    assert_balanced(harness.sink.counters())


ATTRIBUTES: dict[str, Any] = {"service.name": "training", "replicas": 3, "hosts": ("a", "b")}


def the_programs() -> Resource:
    return Resource(ATTRIBUTES, "https://example.org/schema")


class TestSpans:
    def test_ours_and_the_programs_are_of_one_resource(self) -> None:
        harness = Harness(resource=the_programs())
        with harness.provider.get_tracer("program").start_as_current_span("request"):
            pass
        (program,) = harness.exporter.get_finished_spans()
        ours = [harness.one(name=name) for name in "ab"]
        for spans in ([program, *ours], [*ours, program]):
            (resource_spans,) = encode_spans(spans).resource_spans
            assert sum([len(scope.spans) for scope in resource_spans.scope_spans]) == 3
            assert {each.key for each in resource_spans.resource.attributes} == set(ATTRIBUTES)
            assert resource_spans.schema_url == "https://example.org/schema"

    def test_all_of_a_provider_share_one(self) -> None:
        harness = Harness(resource=the_programs())
        assert len({id(harness.one(name=name).resource) for name in "abc"}) == 1

    def test_its_hash_is_worked_out_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The SDK makes a JSON text of all attributes for it, and its exporters ask for every
        span.
        """
        hash_of = Resource.__hash__
        asked = list[Resource]()
        monkeypatch.setattr(
            Resource, "__hash__", lambda resource: asked.append(resource) or hash_of(resource)
        )
        harness = Harness(resource=the_programs())
        assert encode_spans([harness.one(name=name) for name in "abc"]).resource_spans
        assert len(asked) == 1

    def test_it_is_known_to_be_the_programs_without_a_look_at_the_attributes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = the_programs()
        ours = Harness(resource=program).one().resource
        monkeypatch.delattr(BoundedAttributes, "__getitem__")
        assert {program: "program's"}[ours] == {ours: "program's"}[program] == "program's"

    def test_a_provider_may_be_given_another(self) -> None:
        """As in a forked child, where it says which process it is."""
        harness = Harness(resource=the_programs())
        assert harness.write({"context": REQUEST})[0].resource.attributes == ATTRIBUTES
        harness.provider._resource = Resource({"service.name": "child"})
        assert harness.write({"context": REQUEST})[0].resource.attributes == {
            "service.name": "child"
        }


def test_without_a_budget_what_runs_in_compilations_is_a_sum_of_the_range_around() -> None:
    folding = EveryRange()
    context = SpanContextRef(5, 6, 1)
    inside = {"context": context, "flags": int(EventFlag.IN_COMPILATION), "root": 11}
    rows = [{**inside, "event_id": 13, "parent": 12}, {**inside, "event_id": 12, "parent": 11}]
    added, units = folding.add(
        make_batch([{**row, "start_ns": 1, "end_ns": 1 + row["event_id"]} for row in rows]), ()
    )
    assert (added.outcomes[Outcome.IN_SPAN], added.planned, units) == (2, 0, [])
    added, (unit,) = folding.add(
        make_batch([{"context": context, "event_id": 11, "name": "phase"}]), ()
    )
    assert (added.planned, unit.sums) == (1, {11: {FOLDED_COUNT: 2, FOLDED_NS: 12}})
