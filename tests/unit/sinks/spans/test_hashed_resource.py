"""Spans of ours and of the program's have one resource for an exporter, which asks for the hash of ours next to nothing."""

from __future__ import annotations

from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from spans_harness import REQUEST, Harness

from otel_recfn.sinks.spans.provider import HashedResource, hashed

ATTRIBUTES: dict[str, Any] = {"service.name": "training", "replicas": 3, "hosts": ("a", "b")}


def the_programs() -> Resource:
    return Resource(ATTRIBUTES, "https://example.org/schema")


def test_it_is_equal_to_the_programs_in_both_directions() -> None:
    resource, same, other = the_programs(), the_programs(), Resource({"service.name": "other"})
    made = hashed(resource)
    assert isinstance(made, Resource)
    assert made == resource == made == same == made
    assert hash(made) == hash(resource)
    assert made != other
    assert other != made
    assert made != "training"
    assert {resource: 1}[made] == {made: 1}[resource] == {made: 1}[same] == 1


def test_the_sdks_has_a_hash_that_can_be_remembered() -> None:
    assert type(hashed(the_programs())) is HashedResource


class TestSpans:
    def test_ours_and_the_programs_are_of_one_resource(self) -> None:
        harness = Harness(resource=the_programs())
        with harness.provider.get_tracer("program").start_as_current_span("request"):
            pass
        (program,) = harness.exporter.get_finished_spans()
        ours = [harness.one(name=name) for name in "ab"]
        for spans in ([program, *ours], [*ours, program]):
            (of_all,) = encode_spans(spans).resource_spans
            assert sum([len(scope.spans) for scope in of_all.scope_spans]) == 3
            assert {each.key for each in of_all.resource.attributes} == set(ATTRIBUTES)
            assert of_all.schema_url == "https://example.org/schema"

    def test_all_of_a_provider_share_one(self) -> None:
        harness = Harness(resource=the_programs())
        assert len({id(harness.one(name=name).resource) for name in "abc"}) == 1

    def test_a_provider_may_be_given_another(self) -> None:
        """As in a forked child, where it says which process it is."""
        harness = Harness(resource=the_programs())
        assert harness.write({"context": REQUEST})[0].resource.attributes == ATTRIBUTES
        harness.provider._resource = Resource({"service.name": "child"})
        assert harness.write({"context": REQUEST})[0].resource.attributes == {"service.name": "child"}
