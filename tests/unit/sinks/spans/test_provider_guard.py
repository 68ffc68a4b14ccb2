"""What we read of the SDK without its promise.

A failure here says which part moved, before users lose spans.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, SamplingResult, StaticSampler
from spans_harness import Gated

from helpers.timeouts import PATIENCE_S
from otel_recfn.sinks.spans import listener
from otel_recfn.sinks.spans import span_target as ours
from otel_recfn.sinks.spans.processor import OwnSpanProcessor
from otel_recfn.sinks.spans.provider import ProviderResolver
from otel_recfn.sinks.spans.span_target import SpanTarget, shortest_queue


def new_provider(*registered: SpanProcessor, **options: object) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    for processor in registered:
        provider.add_span_processor(processor)
    return provider


def target_of(provider: TracerProvider) -> SpanTarget:
    target = ProviderResolver(provider).resolve()
    assert target is not None
    return target


class ForeignTracer:
    """Another vendor's, with nothing of the SDK's."""


class ForeignProvider(trace.TracerProvider):
    def get_tracer(self, *args: object, **kwargs: object) -> object:
        return ForeignTracer()


class SettableProxy(trace.TracerProvider):
    """A proxy whose provider is set later, and whose tracers show nothing of it."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self.provider = provider
        self.tracers: list[object] = []

    def get_tracer(self, *args: object, **kwargs: object) -> object:
        return ForeignTracer()


class TestProcessors:
    @pytest.mark.parametrize("multi", [SynchronousMultiSpanProcessor, ConcurrentMultiSpanProcessor])
    def test_the_sdk_has_its_processors_in_a_tuple_and_a_lock_for_it(
        self, multi: type[Any]
    ) -> None:
        """Where it has them otherwise, ours comes last, and a shutdown of the provider delivers
        no more what ended before.
        """
        first = SpanProcessor()
        second = SpanProcessor()
        provider = new_provider(first, second, active_span_processor=multi())
        target = target_of(provider)
        assert target.multi_processor._span_processors == (first, second)
        own = OwnSpanProcessor(lambda span: None, lambda timeout_s: True)
        own.register(provider, target.multi_processor)
        assert target.multi_processor._span_processors == (own, first, second)
        assert target.processors() == [first, second]
        own.remove()
        assert target.multi_processor._span_processors == (first, second)
        # The SDK's own lock, which we take to be the first of its processors.
        assert target.multi_processor._lock.acquire(blocking=False)  # noqa: SLF001
        target.multi_processor._lock.release()  # noqa: SLF001

    def test_a_batch_processor_ends_but_once(self) -> None:
        """So the second call is back at once, while the first one waits for an export."""
        exporter = Gated()
        batch = BatchSpanProcessor(exporter, schedule_delay_millis=1)
        new_provider(batch).get_tracer("program").start_span("hangs").end()
        assert exporter.began.wait(PATIENCE_S)
        first = threading.Thread(target=batch.shutdown)
        first.start()
        while not batch._batch_processor._shutdown:
            pass
        batch.shutdown()
        assert first.is_alive()
        exporter.open.set()
        first.join(PATIENCE_S)

    def test_a_lock_that_a_child_inherited_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "LOCK_SECONDS", 0.0)
        target = target_of(new_provider())
        own = OwnSpanProcessor(lambda span: None, lambda timeout_s: True)
        # Another thread of the parent had it at the fork.
        with target.multi_processor._lock:  # noqa: SLF001
            own.register(target.provider, target.multi_processor)
        assert target.multi_processor._span_processors == ()

    @pytest.mark.parametrize("broken", [None, object()])
    def test_it_never_raises_into_the_end_of_a_span(self, broken: object) -> None:
        own = OwnSpanProcessor(lambda span: None, lambda timeout_s: True)
        target = target_of(new_provider())
        own.register(target.provider, target.multi_processor)
        own.on_end(broken)  # type: ignore[arg-type]


class TestFallbacks:
    def test_tracer_without_private_parts(self) -> None:
        class Bare:
            def __init__(self, tracer: object) -> None:
                for part in ours.TRACER_PARTS:
                    setattr(self, part, getattr(tracer, part))

        provider = new_provider()
        target = SpanTarget(provider, Bare(provider.get_tracer("x")))
        assert target.is_enabled()
        assert target.limits.max_span_attributes == SpanLimits().max_span_attributes


class TestResolving:
    def test_no_op_provider(self) -> None:
        assert ProviderResolver(trace.NoOpTracerProvider()).resolve() is None

    def test_a_foreign_provider_is_told_once_with_the_ways_out(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        resolver = ProviderResolver(ForeignProvider())
        with caplog.at_level(logging.WARNING):
            assert resolver.resolve() is None
            resolver._provider = None  # noqa: SLF001 - it looks at the same one once
            assert resolver.resolve() is None
        assert len(caplog.records) == 1
        assert "span_exporter=" in caplog.text
        assert "chrome_trace=" in caplog.text
        # Which would take the program's own spans away from its backend.
        assert "TracerProvider(" not in caplog.text

    def test_spans_that_need_no_processors_have_a_provider_of_ours_beside_a_foreign_one(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        ended = list[str]()

        class Ended(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                ended.append(span.name)

        target = ProviderResolver(ForeignProvider(), step_spans=Ended()).resolve()
        assert target is not None
        assert target.start_root("operators") is not None
        step = target.start_span("step", {}, 7, lambda: None)
        assert step is not None
        step.end()
        assert ended == ["step"]
        assert not caplog.records

    @pytest.mark.parametrize("proxies", [1, 2])
    def test_the_provider_that_a_proxy_has_at_last(
        self, proxies: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        outer = proxy = SettableProxy(trace.NoOpTracerProvider())
        for _ in range(proxies - 1):
            outer = SettableProxy(outer)
        resolver = ProviderResolver(outer)
        assert resolver.resolve() is None
        for provider in (new_provider(), new_provider()):
            proxy.provider = provider
            target = resolver.resolve()
            assert target is not None
            assert target.provider is provider
        assert not caplog.records

    def test_scope_turned_off_by_the_provider(self) -> None:
        provider = new_provider()
        resolver = ProviderResolver(provider)
        assert resolver.resolve() is not None
        provider.get_tracer(
            ours.SCOPE_NAME, ours.__version__, schema_url=ours.SCHEMA_URL
        )._tracer_config.is_enabled = False
        assert resolver.resolve() is None


class TestQueues:
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
        first = target.start_root("operators")
        assert random.random() == expected
        random.seed(1)
        second = target.start_root("operators")
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

        start = target_of(new_provider(id_generator=Fixed())).start_root("operators")
        assert start is not None
        assert (start.context.trace_id, start.context.span_id) == (9, 7)

    @pytest.mark.parametrize("sampler", [ALWAYS_OFF, StaticSampler(Decision.RECORD_ONLY)])
    def test_sampler_says_no(self, sampler: StaticSampler) -> None:
        assert target_of(new_provider(sampler=sampler)).start_root("operators") is None

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
            start = target_of(provider).start_root("operators")
        assert start is not None
        assert start.context.trace_state.get("k") == "v"
        assert dict(start.attributes) == {"ratio": 0.5}
