"""Plans of spans with whatever a program may make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from helpers.batches import MAIN_THREAD, WORKER_THREAD, context, make_batch
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.batches.stage import Stage
from otel_recfn.model.columns import Track
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_target import SpanTarget

INT64 = st.one_of(
    st.sampled_from([0, 1, -1, -(1 << 63), (1 << 63) - 1, 127, 128]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
UINT64 = st.one_of(st.sampled_from([0, 1, (1 << 63), (1 << 64) - 1]), st.integers(0, (1 << 64) - 1))
TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "aten::add",
            "\0",
            "a\0b",
            "\ud800",
            "\udc80 not UTF-8",
            "n\u00e4me",
            "\U0001f525",
            "x" * 200,
            "y" * 17_000,
        ]
    ),
    st.text(st.characters(), max_size=80),
)
"""Also with lone surrogates: what stands for bytes that are no UTF-8."""
SHAPES = st.one_of(st.just(""), st.just("[]"), st.just("[[2,3],[],[[4],[5]]]"), TEXTS)
DTYPES = st.one_of(st.just(""), st.just('["float","\\ud800",""]'), TEXTS)
CALLS = st.sampled_from(
    ["model.py(12): forward", "(0): ", "a(b(3): c(4): d", "<built-in function add>"]
)
STATES = st.sampled_from(["", "vendor=1", "a=1,b@c=2", "key=" + "v" * 200])
TRACKS = st.one_of(
    st.sampled_from([MAIN_THREAD, WORKER_THREAD]),
    st.builds(Track, st.integers(1, 9), UINT64, st.integers(0, 99), UINT64, TEXTS),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    TEXTS.map(lambda text: text.encode("utf-8", "backslashreplace").decode()),
    st.booleans(), INT64, st.floats(allow_nan=False), st.lists(INT64, max_size=3),
    st.lists(st.floats(allow_nan=False), max_size=3),
)  # fmt: skip
KEYS = st.sampled_from(["recfn.compile.id", "\ud800", "sizes"])
ATTRIBUTES = st.one_of(
    st.just(""),
    st.dictionaries(KEYS, st.one_of(VALUES, st.none(), TEXTS), max_size=3).map(json.dumps),
    TEXTS,
)
ROWS = st.fixed_dictionaries(
    {"end_ns": INT64},
    optional={
        "name": st.one_of(TEXTS, CALLS),
        "scope": st.sampled_from(RecordScope),
        "source": st.sampled_from([source for source in EventSource if source != EventSource.STEP]),
        "start_ns": INT64,
        "thread": TRACKS,
        "sequence_nr": INT64,
        "forward_thread_id": UINT64,
        "handle": UINT64,
        "node_id": INT64,
        "debug_handle": INT64,
        "step_number": INT64,
        "cpu_time_ns": INT64,
        "flags": st.integers(0, 127).map(EventFlag),
        "shapes": SHAPES,
        "dtypes": DTYPES,
        "module": TEXTS,
        "error": TEXTS,
        "stacktrace": TEXTS,
        "code": st.one_of(TEXTS, CALLS),
        "attributes": ATTRIBUTES,
    },
)
TOLD = st.dictionaries(
    st.sampled_from(["recfn.folded.count", "recfn.folded.top", "aggregation.x"]), VALUES, max_size=3
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[SpanPlan, Mapping[int, Mapping[str, Any]]]:
    """A plan, and what is told of folded ranges by row."""
    rows = draw(st.lists(ROWS, max_size=8))
    identities = st.tuples(st.integers(1, (1 << 128) - 1), st.integers(1, (1 << 64) - 1), STATES)
    above = draw(st.lists(identities, min_size=1, max_size=3))
    for number, row in enumerate(rows):
        trace_id, span_id, state = draw(st.sampled_from(above))
        row["context"] = context(trace_id, span_id)._replace(trace_state=state)
        row["root"] = row["event_id"] = (1 << 40) + number + 1
        row["parent"] = 0
        around = draw(st.sampled_from([None, *rows[:number]] if "source" in row else [None]))
        if around is not None:  # both lie in the span that was current when the outermost began
            row.update(parent=around["event_id"], root=around["root"], context=around["context"])
    plan = plan_of(rows)
    links = draw(
        st.lists(st.integers(0, (1 << 64) - 1), min_size=len(plan.row), max_size=len(plan.row))
    )
    plan = plan._replace(linked_id=np.array(links, np.uint64))
    order = draw(st.permutations(range(len(plan.row))))
    folded = {row: draw(TOLD) for row in draw(st.lists(st.integers(0, 9), max_size=2))}
    return plan.part(np.array(order, np.int64)), folded


def plan_of(rows: list[dict[str, Any]]) -> SpanPlan:
    """The plan of these rows, which lie in spans of the program."""
    return Stage(0).plan(make_batch(rows))[0]


def target(limits: SpanLimits | None = None) -> SpanTarget:
    """A provider's."""
    found = ProviderResolver(TracerProvider(shutdown_on_exit=False, span_limits=limits)).resolve()
    assert found is not None
    return found
