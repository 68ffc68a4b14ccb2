"""A span is the same on either way: what we encode is what the official encoder makes of the same spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from otlp_plans import TEXTS, plan_of, plans, target

from batches import context
from otel_recfn.batches.span_plan import SpanPlan
from otel_recfn.model.events import EventFlag, EventSource
from otel_recfn.sinks.otlp.encoding import EncodedSpans, OtlpMapper, encoded
from otel_recfn.sinks.spans.mapping import SpanMapper
from thoroughness import examples

pytestmark = pytest.mark.one_python

Told = Mapping[int, Mapping[str, Any]]
LIMITS = [None, SpanLimits(max_span_attributes=3), SpanLimits(max_attribute_length=5), SpanLimits(max_events=1, max_links=0)]


def official(spans: list[ReadableSpan]) -> list[Span]:
    return [span for resource in encode_spans(spans).resource_spans for scope in resource.scope_spans for span in scope.spans]


def read(spans: EncodedSpans) -> list[Span]:
    whole = list(ScopeSpans.FromString(bytes(spans.data)).spans)
    ends = spans.ends.tolist()
    single = [ScopeSpans.FromString(bytes(spans.data[begin:end])).spans for begin, end in zip([0, *ends], ends, strict=False)]
    assert [list(each) for each in single] == [[span] for span in whole]
    return whole


@examples(60)
@given(plans(), st.sampled_from(LIMITS))
def test_rows_become_the_spans_that_the_official_encoder_writes(plan: tuple[SpanPlan, Told], limits: SpanLimits | None) -> None:
    where = target(limits)
    ours, objects = OtlpMapper(where).spans(*plan), SpanMapper(where).spans(*plan)
    assert read(ours) == official(objects)
    assert (ours.data, ours.ends.tolist()) == (
        encoded(objects).data,
        encoded(objects).ends.tolist(),
    )  # of both encoders


@given(TEXTS)
def test_every_text_that_may_be_recorded_arrives(text: str) -> None:
    row = {
        "name": text, "module": text, "error": text, "shapes": text, "source": EventSource.PYTHON_CALL,
        "flags": EventFlag.ERROR, "context": context(1, 2),
    }  # fmt: skip
    (span,) = read(OtlpMapper(target()).spans(plan_of([row])))
    assert span.name == text.encode("utf-8", "backslashreplace").decode()
    assert span.status.message == span.name
