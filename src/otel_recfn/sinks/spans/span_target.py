"""A tracer provider as far as finished spans need it: its sampler, resource, ids and processors.

Finished spans are handed to a provider's span processors directly, because a live SDK span costs
more than an operator. The SDK has no public way to do that. What is read here that the SDK doesn't
promise, each with a fallback:

    Tracer.span_processor, .sampler, .resource, .id_generator
        without them: no spans, as with a foreign provider
    Tracer._span_limits, ._is_enabled()
        without them: the default limits, enabled
    BatchSpanProcessor._batch_processor._max_queue_size
        without it: the default size

``on_start`` of a processor isn't called: our spans have no life before their end.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind

from otel_recfn.batches.outcomes import SAMPLED
from otel_recfn.sinks.spans.listener import flattened, without_ours
from otel_recfn.sinks.spans.span_limits import Attributes, AttributeValue
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import GuardedLog
from otel_recfn.support.safe_texts import safe_exception
from otel_recfn.support.signal_handlers import calling_out
from otel_recfn.support.span_log import SCOPE_NAME
from otel_recfn.version import __version__

TRACER_PARTS = ("span_processor", "sampler", "resource", "id_generator")
"""What a tracer of the SDK's has."""
DEFAULT_QUEUE_SIZE = 2048
"""The SDK's own, of a batch processor."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
"""The first semantic conventions with ``code.function.name`` as we use it."""
_logger = GuardedLog(logging.getLogger(__name__), {})


class HashedResource(Resource):
    """A resource equal to another one that remembers its hash: exporters ask for it for every
    span, and it takes 6 us.
    """

    def __init__(self, known: Resource) -> None:
        vars(self).update(vars(known))
        self._recfn_hash = hash(known)

    # Exporters compare it with the program's, whose attributes it has.
    def __eq__(self, other: object) -> bool:
        return getattr(other, "_attributes", None) is self._attributes or super().__eq__(other)

    def __hash__(self) -> int:
        return self._recfn_hash


def hashed(resource: Resource) -> Resource:
    """The resource with its hash remembered; the resource itself if that can't be done."""
    try:
        return HashedResource(resource) if type(resource) is Resource else resource
    except Exception:  # an attribute is no JSON
        return resource


class RootStart(NamedTuple):
    """A trace that the sampler lets us start."""

    context: SpanContext
    attributes: Mapping[str, AttributeValue]
    """The attributes that the sampler wants on the root span."""
    parent: SpanContext | None = None
    """The root span's parent in another process; None if it has none."""
    links: Sequence[trace.Link] = ()
    name: str = ""
    """The name under which the sampler was asked, which is the root span's."""


class OuterSpan(NamedTuple):
    """Where a span that no span of this process is around belongs."""

    parent: SpanContext | None = None
    """The span of another process that it is a child of; None for the root of a trace."""
    links: Sequence[trace.Link] = ()

    def context(self) -> Context:
        """The current context with this span."""
        span = trace.INVALID_SPAN
        if self.parent is not None:
            span = trace.NonRecordingSpan(self.parent)
        return trace.set_span_in_context(span)


def root_attributes(parent: SpanContext | None) -> Attributes:
    """The attributes of a root span of ours; none if it has a parent in another process."""
    return {"recfn.root": True} if parent is None else {}


class SpanTarget:
    """An SDK provider and its tracer, as far as finished spans need them.

    ``step_spans`` gets the spans of steps; None: the provider's processors do.
    """

    def __init__(self, provider: Any, tracer: Any, step_spans: SpanProcessor | None = None) -> None:
        self.provider, self._tracer = provider, tracer
        self._known_resource = self._resource = Resource.get_empty()
        self._sampler_failed = False
        self.scope = InstrumentationScope(SCOPE_NAME, __version__, SCHEMA_URL)
        is_enabled = getattr(tracer, "_is_enabled", None)
        self.is_enabled: Callable[[], object] = is_enabled if callable(is_enabled) else lambda: True
        """Whether the provider's configuration leaves our instrumentation scope on."""
        self.limits: SpanLimits = getattr(tracer, "_span_limits", None) or SpanLimits()
        self._step_tracer: Any = tracer if step_spans is None else self._tracer_to(step_spans)

    def _tracer_to(self, processor: SpanProcessor) -> trace.Tracer:
        """A tracer like the provider's, whose spans only this processor sees."""
        like = self._tracer
        provider = TracerProvider(
            sampler=like.sampler,
            resource=self.resource,
            id_generator=like.id_generator,
            span_limits=self.limits,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(processor)
        return own_tracer(provider)

    def start_root(
        self,
        name: str,
        parent: SpanContext | None = None,
        links: Sequence[trace.Link] = (),
    ) -> RootStart | None:
        """Ask the provider's sampler for a new trace, or for a part of the ``parent``'s; None if it
        refuses.

        Recorded but not sampled is a refusal too, as such spans of the program get no operators
        below them; so is an error. The context given is empty, because samplers take None for the
        current one of our thread.
        """
        try:
            with calling_out():
                parent_context = Context()
                trace_id = parent.trace_id if parent is not None else self._new_id(128)
                if parent is not None:
                    parent_context = trace.set_span_in_context(
                        trace.NonRecordingSpan(parent), parent_context
                    )
                sampler: Sampler = self._tracer.sampler
                result = sampler.should_sample(
                    parent_context,
                    trace_id,
                    name,
                    SpanKind.INTERNAL,
                    root_attributes(parent),
                    links,
                )
                if result.decision is not Decision.RECORD_AND_SAMPLE:
                    return None
                context = SpanContext(
                    trace_id, self.new_span_id(), False, SAMPLED, result.trace_state
                )
                return RootStart(
                    context,
                    attributes=dict(result.attributes),
                    parent=parent,
                    links=links,
                    name=name,
                )
        except BaseException as error:
            if raised_by_signal_handler(error):
                raise
            self._log_once(
                "the sampler or the id generator raised; traces that it raises for are not started"
            )
            return None

    def start_span(
        self,
        name: str,
        attributes: Attributes,
        start_ns: int,
        find_outer: Callable[[], OuterSpan | None],
        links: Sequence[trace.Link] = (),
    ) -> trace.Span | None:
        """A span like the program's own; None if what is asked raises.

        It belongs where ``find_outer`` says; None: below the current span. It has the
        links of that, and these.
        """
        try:
            outer = find_outer()
            span: trace.Span = self._step_tracer.start_span(
                name,
                outer.context() if outer is not None else None,
                attributes=attributes,
                links=(*(outer.links if outer is not None else ()), *links),
                start_time=start_ns,
            )
        except BaseException as error:
            if raised_by_signal_handler(error):
                raise
            self._log_once(
                "a step was given no span, because the sampler or a span processor raised"
            )
            return None
        return span

    def _log_once(self, message: str) -> None:
        if not self._sampler_failed:
            self._sampler_failed = True
            _logger.exception("otel-recfn: %s", message)

    @property
    def resource(self) -> Resource:
        """The provider's resource, with its hash. A forked child's differs."""
        known: Resource = getattr(self.provider, "resource", None) or self._tracer.resource
        if known is not self._known_resource:
            self._resource = hashed(known)  # first, because other threads ask meanwhile
            self._known_resource = known
        return self._resource

    def new_span_id(self) -> int:
        """The id of a span that is made of no range."""
        return self._new_id(64)

    def _new_id(self, bits: int) -> int:
        """A trace id (128 bits) or span id (64), from the provider's id generator unless that is
        the SDK's random one.

        That one draws from the ``random`` module, which training programs seed: our thread must not
        change what they draw next, nor make the same trace ids in every process that seeds alike.
        """
        generator: IdGenerator = self._tracer.id_generator
        if type(generator) is RandomIdGenerator:
            return secrets.randbits(bits) or 1
        made = generator.generate_trace_id() if bits == 128 else generator.generate_span_id()
        if not 0 < made < 1 << bits:
            raise ValueError(f"{made!r} is not an id of {bits} bits")
        return made

    @property
    def multi_processor(self) -> Any:
        """What the provider's tracers call: it calls the processors."""
        return self._tracer.span_processor

    def processors(self) -> list[Any]:
        """The processors that finished spans are handed to."""
        return without_ours(self.multi_processor)

    def force_flush(self, timeout_s: float) -> bool:
        """Have them export what they hold.

        May take longer than ``timeout_s``: the BatchSpanProcessor ignores it.

        They are called one by one and not through their provider: ours would be asked, too, and a
        ConcurrentMultiSpanProcessor may have no thread free while it waits for us.
        """
        deadline = time.monotonic() + timeout_s
        flushed = True
        for processor in self.processors():
            try:
                left_ms = max(0, int(1000 * (deadline - time.monotonic())))
                flushed = processor.force_flush(left_ms) is not False and flushed
            # This is the sender's thread, in which no signal handler runs.
            except BaseException as error:
                text = "otel-recfn: a span processor raised in force_flush; what it had may be lost"
                _logger.error(text, exc_info=safe_exception(error))
                flushed = False
        return flushed


def own_tracer(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(SCOPE_NAME, __version__, schema_url=SCHEMA_URL)


def shortest_queue(processors: Sequence[Any]) -> int:
    """The least size of the queues of processors and of those within them; SDKs before 1.33 keep
    it in the processor.
    """
    inner = [found for processor in processors for found in flattened(processor)]
    having = [getattr(processor, "_batch_processor", processor) for processor in inner]
    sizes = [
        getattr(one, "_max_queue_size", None) or getattr(one, "max_queue_size", None)
        for one in having
    ]
    return min([size for size in sizes if size], default=DEFAULT_QUEUE_SIZE)
