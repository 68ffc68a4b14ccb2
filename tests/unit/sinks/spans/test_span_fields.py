"""Every field of a span, within the limits of the provider, and fit for its encoder."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import SpanKind, StatusCode
from spans_harness import BACKWARD, FORWARD, REQUEST, Harness

from helpers.batches import BASE_NS, MAIN_THREAD, WORKER_THREAD
from otel_recfn.model.batch import Track
from otel_recfn.model.events import EventFlag, RecordScope, make_event_id
from otel_recfn.version import __version__

pytestmark = pytest.mark.one_python


class TestFields:
    def test_what_every_span_has(self) -> None:
        resource = Resource({"service.name": "training"})
        span = Harness(resource=resource).one(
            name="aten::add",
            scope=RecordScope.USER_SCOPE,
            start_ns=BASE_NS,
            end_ns=BASE_NS + 7,
            handle=9,
            sequence_nr=4,
        )
        assert (span.name, span.kind) == ("aten::add", SpanKind.INTERNAL)
        assert (span.start_time, span.end_time) == (BASE_NS, BASE_NS + 7)
        assert span.status.status_code is StatusCode.UNSET
        assert (span.events, span.links) == ((), ())
        assert span.resource == resource
        assert dict(span.attributes) == {
            "recfn.scope": "USER_SCOPE",
            "recfn.sequence_nr": 4,
            "recfn.thread_id": MAIN_THREAD.thread_id,
            "recfn.event_id": make_event_id(1, 1),
            "recfn.handle": 9,
            "thread.id": MAIN_THREAD.ident,
            "thread.name": "MainThread",
        }

    def test_scope_of_the_instrumentation(self) -> None:
        scope = Harness().one().instrumentation_scope
        assert (scope.name, scope.version) == ("otel_recfn", __version__)
        assert scope.schema_url.startswith("https://opentelemetry.io/schemas/1.")

    @pytest.mark.parametrize(
        ("column", "value", "attribute", "expected"),
        [
            ("sequence_nr", 0, "recfn.sequence_nr", 0),
            ("forward_thread_id", 3, "recfn.forward_thread_id", 3),
            ("node_id", 0, "recfn.node_id", 0),
            ("debug_handle", 5, "recfn.debug_handle", 5),
            ("flags", EventFlag.ASYNC, "recfn.async", True),
            ("flags", EventFlag.PARTIAL, "recfn.partial", True),
            ("module", "encoder.layers.0", "recfn.module", "encoder.layers.0"),
            (
                "shapes",
                "[[2,3],[],[[4],[5]]]",
                "recfn.input_shapes",
                ("[2, 3]", "[]", "[[4], [5]]"),
            ),
            ("dtypes", '["float","Scalar",""]', "recfn.input_dtypes", ("float", "Scalar", "")),
            ("shapes", "[]", "recfn.input_shapes", ()),
            ("shapes", "not JSON", "recfn.input_shapes", ("not JSON",)),
            ("shapes", "7", "recfn.input_shapes", ("7",)),
        ],
    )
    def test_only_where_it_was_recorded(
        self, column: str, value: object, attribute: str, expected: object
    ) -> None:
        harness = Harness()
        assert attribute not in harness.one().attributes
        attributes = harness.one(**{column: value}).attributes
        assert attributes[attribute] == expected
        assert type(attributes[attribute]) is type(expected)

    def test_each_key_of_what_an_end_says_is_an_attribute(self) -> None:
        said = {
            "recfn.compile.id": "0/1",
            "sizes": [4, 8],
            "mixed": [1, "a"],
            "cached": True,
            "of": {"a": None},
            "\ud800": "\udc80",
        }
        attributes = Harness().one(attributes=json.dumps(said)).attributes
        assert (attributes["recfn.compile.id"], attributes["sizes"], attributes["cached"]) == (
            "0/1",
            (4, 8),
            True,
        )
        assert (attributes["mixed"], attributes["of"], attributes["\\ud800"]) == (
            '[1, "a"]',
            '{"a": null}',
            "\\udc80",
        )
        assert "recfn.compile.id" not in Harness().one(attributes="no JSON").attributes

    def test_thread_that_python_does_not_know(self) -> None:
        attributes = Harness().one(thread=WORKER_THREAD).attributes
        assert attributes["recfn.thread_id"] == WORKER_THREAD.thread_id
        assert "thread.id" not in attributes
        assert "thread.name" not in attributes

    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [("ValueError: a: b", "ValueError", "a: b"), ("lib.Broken", "lib.Broken", "")],
    )
    def test_exception(self, error: str, kind: str, message: str) -> None:
        span = Harness().one(
            flags=EventFlag.ERROR, error=error, start_ns=BASE_NS, end_ns=BASE_NS + 9
        )
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, error)
        (event,) = span.events
        assert (event.name, event.timestamp) == ("exception", BASE_NS + 9)
        assert dict(event.attributes) == {"exception.type": kind, "exception.message": message}
        assert span.attributes["error.type"] == kind

    def test_where_it_was_raised(self) -> None:
        stacktrace = (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: no\n'
        )
        (event,) = (
            Harness()
            .one(flags=EventFlag.ERROR, error="ValueError: no", stacktrace=stacktrace)
            .events
        )
        assert event.attributes["exception.stacktrace"] == stacktrace


class TestLimits:
    def test_attribute_count(self) -> None:
        span = Harness(span_limits=SpanLimits(max_span_attributes=2)).one(handle=7)
        assert len(span.attributes) == 2
        assert span.dropped_attributes == 4

    def test_attribute_length(self) -> None:
        limits = SpanLimits(max_span_attribute_length=4, max_attribute_length=3)
        span = Harness(span_limits=limits).one(
            flags=EventFlag.ERROR, error="ValueError: too long", shapes="[[20,30]]"
        )
        assert span.attributes["recfn.scope"] == "FUNC"
        assert span.attributes["recfn.input_shapes"] == ("[20,",)
        assert span.events[0].attributes["exception.message"] == "too"

    def test_no_events_and_no_links(self) -> None:
        harness = Harness(span_limits=SpanLimits(max_events=0, max_links=0))
        _, backward = harness.write(
            {**FORWARD, "context": REQUEST},
            {**BACKWARD, "context": REQUEST, "flags": EventFlag.ERROR, "error": "E: m"},
        )
        assert (backward.events, backward.links) == ((), ())


class TestSeam:
    """Values that would cost the SDK's encoder a whole batch."""

    @pytest.mark.parametrize(
        "row",
        [
            {"start_ns": -5, "end_ns": -1},
            {"start_ns": 10, "end_ns": 3},
            {"name": "lone \ud800"},
            {
                "module": "\udfff",
                "shapes": '["\\ud800"]',
                "flags": EventFlag.ERROR,
                "error": "E\ud800: m",
            },
            {"handle": (1 << 64) - 1, "forward_thread_id": 1 << 63},
            {"thread": Track(1, 1 << 63, 0, (1 << 64) - 1, "\ud801")},
        ],
    )
    def test_encodes(self, row: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
        span = Harness().one(**row)
        assert 0 <= span.start_time <= span.end_time
        with caplog.at_level(logging.WARNING):
            encoded = encode_spans([span]).SerializeToString()
        assert encoded
        assert caplog.records == []
