"""What we read of the SDK without its promise. A failure here says which part moved, before users lose spans."""

from __future__ import annotations

import logging
import random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, SamplingResult, StaticSampler

from otel_recfn.sinks.spans import provider as ours
from otel_recfn.sinks.spans.provider import (
    ProviderResolver,
    SpanTarget,
    exporters_of,
    queue_before,
    shortest_queue,
)


def new_provider(*processors: SpanProcessor, **options: object) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for processor in processors:
        provider.add_span_processor(processor)
    return provider


def target_of(provider: TracerProvider) -> SpanTarget:
    target = ProviderResolver(provider).resolve()
    assert target is not None
    return target


class TestFallbacks:
    def test_tracer_without_private_parts(self) -> None:
        class Bare:
            def __init__(self, tracer: object) -> None:
                for part in ours._TRACER_PARTS:
                    setattr(self, part, getattr(tracer, part))

        provider = new_provider()
        target = SpanTarget(provider, Bare(provider.get_tracer("x")))
        assert target.is_enabled()
        assert target.limits.max_span_attributes == SpanLimits().max_span_attributes

    def test_exporters_behind_nested_processors_are_found_once(self) -> None:
        exporter = InMemorySpanExporter()
        nested = ConcurrentMultiSpanProcessor()
        nested.add_span_processor(SimpleSpanProcessor(exporter))
        target = target_of(new_provider(nested, SimpleSpanProcessor(exporter), SpanProcessor()))
        assert exporters_of(target.processors()) == [exporter]


class TestResolving:
    def test_no_op_provider(self) -> None:
        assert ProviderResolver(trace.NoOpTracerProvider()).resolve() is None

    def test_foreign_provider_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        class ForeignProvider(trace.TracerProvider):
            def get_tracer(self, *args: object, **kwargs: object) -> object:
                return object()

        resolver = ProviderResolver(ForeignProvider())
        with caplog.at_level(logging.WARNING):
            assert resolver.resolve() is None
            resolver._provider = None
            assert resolver.resolve() is None
        assert len(caplog.records) == 1
        assert "tracer_provider=" in caplog.text

    def test_scope_turned_off_by_the_provider(self) -> None:
        provider = new_provider()
        resolver = ProviderResolver(provider)
        assert resolver.resolve() is not None
        provider.get_tracer(
            ours.SCOPE_NAME, ours.__version__, schema_url=ours.SCHEMA_URL
        )._tracer_config.is_enabled = False
        assert resolver.resolve() is None


class TestQueues:
    def test_a_batch_processor_has_a_queue_which_its_exporter_alone_reads(self) -> None:
        exporter = InMemorySpanExporter()
        processor, other = BatchSpanProcessor(exporter), BatchSpanProcessor(exporter)
        assert queue_before(exporter, [processor]) is processor._batch_processor._queue
        assert queue_before(exporter, [processor, other]) is None
        assert queue_before(exporter, [SimpleSpanProcessor(exporter)]) is None
        processor.shutdown()
        other.shutdown()

    @pytest.mark.parametrize("sizes", [(2048,), (100, 2048), (7,), ()])
    def test_the_shortest_counts(self, sizes: tuple[int, ...]) -> None:
        queues = [
            BatchSpanProcessor(InMemorySpanExporter(), size, max_export_batch_size=1)
            for size in sizes
        ]
        provider = new_provider(*queues, SimpleSpanProcessor(InMemorySpanExporter()))
        assert shortest_queue(target_of(provider).processors()) == min(
            sizes, default=ours.DEFAULT_QUEUE_SIZE
        )
        provider.shutdown()

    def test_force_flush_that_raises(self, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(SpanProcessor):
            def force_flush(self, timeout_millis: int = 0) -> bool:
                raise OSError("gone")

        assert not target_of(new_provider(Broken())).force_flush(1)
        assert "force_flush" in caplog.text


class TestRoots:
    def test_ids_leave_the_seeded_random_alone(self) -> None:
        target = target_of(new_provider())
        random.seed(1)
        expected = random.random()
        random.seed(1)
        first = target.start_root("operators", {})
        assert random.random() == expected
        random.seed(1)
        second = target.start_root("operators", {})
        assert first is not None
        assert second is not None
        assert first.context.is_valid
        assert first.context.trace_id != second.context.trace_id

    def test_ids_of_another_generator(self) -> None:
        class Fixed(IdGenerator):
            def generate_span_id(self) -> int:
                return 7

            def generate_trace_id(self) -> int:
                return 9

        start = target_of(new_provider(id_generator=Fixed())).start_root("operators", {})
        assert start is not None
        assert (start.context.trace_id, start.context.span_id) == (9, 7)

    @pytest.mark.parametrize("sampler", [ALWAYS_OFF, StaticSampler(Decision.RECORD_ONLY)])
    def test_sampler_says_no(self, sampler: StaticSampler) -> None:
        assert target_of(new_provider(sampler=sampler)).start_root("operators", {}) is None

    def test_sampler_sees_no_parent_and_decides_attributes_and_state(self) -> None:
        class Asked(StaticSampler):
            def should_sample(
                self, parent_context, trace_id, name, kind=None, attributes=None, links=None
            ):
                assert not trace.get_current_span(parent_context).get_span_context().is_valid
                assert (name, kind, dict(attributes)) == (
                    "operators",
                    trace.SpanKind.INTERNAL,
                    {"recfn.root": True},
                )
                return SamplingResult(
                    self._decision, {"ratio": 0.5}, trace.TraceState([("k", "v")])
                )

        provider = new_provider(sampler=Asked(Decision.RECORD_AND_SAMPLE))
        current = trace.NonRecordingSpan(trace.SpanContext(1, 2, False))
        with trace.use_span(current):
            start = target_of(provider).start_root("operators", {"recfn.root": True})
        assert start is not None
        assert start.context.trace_state.get("k") == "v"
        assert dict(start.attributes) == {"ratio": 0.5}
