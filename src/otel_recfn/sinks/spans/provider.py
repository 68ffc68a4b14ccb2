"""The provider of spans: the one place that knows the insides of the OpenTelemetry SDK.

Finished spans are handed to a provider's span processors directly, because a live SDK span costs more than an operator. The SDK
has no public way to do that. What is read here that the SDK doesn't promise, each with a fallback:

    Tracer.span_processor, .sampler, .resource, .id_generator    without them: no spans, as with a foreign provider
    Tracer._span_limits, ._is_enabled()                          without them: the default limits, enabled
    <multi span processor>._span_processors                      without it: exporters can't be watched
    BatchSpanProcessor._batch_processor._max_queue_size          without it: the default size
    BatchSpanProcessor._batch_processor._queue                   without it: beside a backend that hangs, a program that ends
                                                                 waits for its own spans batch after batch
    Batch- and SimpleSpanProcessor.span_exporter                 without it: that exporter can't be watched

``on_start`` of a processor isn't called: our spans have no life before their end.

The provider's limits are applied where they can bind: our spans have at most ``MOST_ATTRIBUTES``, far below the default, one
event and one link, and the SDK's bounded containers cost more than the whole span.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401
import logging
import netrc  # noqa: F401
import pickle
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias, cast

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind

from otel_recfn.batches.stage import SAMPLED
from otel_recfn.support.signal_handlers import calling_out, raised_by_signal_handler
from otel_recfn.support.texts import safe_exception
from otel_recfn.version import __version__

MOST_ATTRIBUTES = 32

AttributeValue: TypeAlias = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)
Attributes: TypeAlias = Mapping[str, AttributeValue]


class AppliedLimits:
    """The effect of a provider's ``SpanLimits`` on our spans."""

    def __init__(self, limits: SpanLimits) -> None:
        self._limits = limits
        of_span = _unbound(limits.max_span_attributes, limits.max_span_attribute_length)
        of_event = _unbound(limits.max_event_attributes, limits.max_attribute_length)
        self.has_events, self.has_links = limits.max_events != 0, limits.max_links != 0
        self.unbound = of_span and of_event and self.has_events and self.has_links
        """Whether nothing of a span is cut."""

    def span_attributes(self, attributes: Attributes) -> Attributes:
        """The attributes of a span, cut to the limits and counted."""
        if self.unbound:
            return attributes
        return _bounded(
            attributes, self._limits.max_span_attributes, self._limits.max_span_attribute_length
        )

    def event_attributes(self, attributes: Attributes) -> Attributes:
        """The attributes of an event, likewise."""
        if self.unbound:
            return attributes
        return _bounded(
            attributes, self._limits.max_event_attributes, self._limits.max_attribute_length
        )


def _bounded(attributes: Attributes, max_count: int | None, max_length: int | None) -> Attributes:
    bounded: Any = BoundedAttributes(max_count, attributes, max_value_len=max_length)
    return cast(Attributes, bounded)


def _unbound(max_count: int | None, max_length: int | None) -> bool:
    return max_length is None and (max_count is None or max_count >= MOST_ATTRIBUTES)


class HashedResource(Resource):
    """A resource equal to another one that remembers its hash: exporters ask for it for every span, and it takes 6 us."""

    def __init__(self, known: Resource) -> None:
        vars(self).update(vars(known))
        self._recfn_hash = hash(known)

    def __eq__(
        self, other: object
    ) -> bool:  # exporters compare it with the program's, whose attributes it has
        return getattr(other, "_attributes", None) is self._attributes or super().__eq__(other)

    def __hash__(self) -> int:
        return self._recfn_hash


def hashed(resource: Resource) -> Resource:
    """The resource with its hash remembered; the resource itself if that can't be done."""
    try:
        return HashedResource(resource) if type(resource) is Resource else resource
    except Exception:  # an attribute is no JSON
        return resource


SCOPE_NAME = "otel_recfn"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
"""The first semantic conventions with ``code.function.name`` as we use it."""

DEFAULT_QUEUE_SIZE = 2048
_TRACER_PARTS = ("span_processor", "sampler", "resource", "id_generator")


_logger = logging.getLogger(__name__)


class RootStart(NamedTuple):
    """A trace that the sampler lets us start."""

    context: SpanContext
    attributes: Mapping[str, AttributeValue]
    """The attributes that the sampler wants on the root span."""
    parent: SpanContext | None = None
    """The root span's parent in another process; None if it has none."""
    links: Sequence[trace.Link] = ()


class SpanTarget:
    """An SDK provider and its tracer, as far as finished spans need them.

    Where the program has not set it (``is_set``), live spans of it are seen by nobody.
    """

    def __init__(self, provider: Any, tracer: Any, is_set: bool = True) -> None:
        self._provider, self._tracer, self._is_set = provider, tracer, is_set
        self._known_resource = self._resource = Resource.get_empty()
        self._sampler_failed = False
        self.scope = InstrumentationScope(SCOPE_NAME, __version__, SCHEMA_URL)
        is_enabled = getattr(tracer, "_is_enabled", None)
        self.is_enabled: Callable[[], object] = is_enabled if callable(is_enabled) else lambda: True
        """Whether the provider's configuration leaves our instrumentation scope on."""
        self.limits: SpanLimits = getattr(tracer, "_span_limits", None) or SpanLimits()

    def start_root(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue],
        parent: SpanContext | None = None,
        links: Sequence[trace.Link] = (),
    ) -> RootStart | None:
        """Ask the provider's sampler for a new trace, or for a part of the ``parent``'s; None if it refuses.

        Recorded but not sampled is a refusal too, as such spans of the program get no operators below them; so is an error. The
        context given is empty, because samplers take None for the current one of our thread.
        """
        try:
            with calling_out():
                around, trace_id = (
                    Context(),
                    parent.trace_id if parent is not None else self._new_id(128),
                )
                if parent is not None:
                    around = trace.set_span_in_context(trace.NonRecordingSpan(parent), around)
                sampler: Sampler = self._tracer.sampler
                result = sampler.should_sample(
                    around, trace_id, name, SpanKind.INTERNAL, attributes, links
                )
                if result.decision is not Decision.RECORD_AND_SAMPLE:
                    return None
                context = SpanContext(
                    trace_id, self._new_id(64), False, SAMPLED, result.trace_state
                )
                return RootStart(context, dict(result.attributes), parent, links)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            self._log_once(
                "the sampler or the id generator raised; traces that it raises for are not started"
            )
            return None

    def start_span(self, name: str, attributes: Mapping[str, AttributeValue]) -> trace.Span | None:
        """A span like the program's own, below the current one; None if a sampler or a processor raises, or there is none."""
        if not self._is_set:
            return None
        try:
            span: trace.Span = self._tracer.start_span(name, attributes=attributes)
        except Exception as error:
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
        known: Resource = getattr(self._provider, "resource", None) or self._tracer.resource
        if known is not self._known_resource:
            self._known_resource, self._resource = known, hashed(known)
        return self._resource

    def _new_id(self, bits: int) -> int:
        """A trace id (128 bits) or span id (64), from the provider's id generator unless that is the SDK's random one.

        That one draws from the ``random`` module, which training programs seed: our thread must not change what they draw
        next, nor make the same trace ids in every process that seeds alike.
        """
        generator: IdGenerator = self._tracer.id_generator
        if type(generator) is RandomIdGenerator:
            return secrets.randbits(bits) or 1
        made = generator.generate_trace_id() if bits == 128 else generator.generate_span_id()
        if not 0 < made < 1 << bits:
            raise ValueError(f"{made!r} is no id of {bits} bits")
        return made

    def processors(self) -> list[Any]:
        """All processors, also those within others."""
        return _flattened(self._tracer.span_processor)

    def end(self, span: ReadableSpan) -> None:
        """Hand a finished span to the processors."""
        self._tracer.span_processor.on_end(span)

    def force_flush(self, timeout_s: float) -> bool:
        """Have the processors export what they hold. May take longer than ``timeout_s``: the BatchSpanProcessor ignores it."""
        try:
            flushed: object = self._provider.force_flush(max(0, int(timeout_s * 1000)))
            return flushed is not False
        except (Exception, SystemExit) as error:
            text = "otel-recfn: a span processor raised in force_flush; spans that it held count as failed"
            _logger.error(text, exc_info=safe_exception(error))
            return False


def exporters_of(processors: Sequence[Any]) -> list[Any]:
    """The exporters behind the processors that name them, each once."""
    found = [getattr(processor, "span_exporter", None) for processor in processors]
    return list({id(exporter): exporter for exporter in found if exporter is not None}.values())


def queue_before(exporter: object, processors: Sequence[Any]) -> deque[ReadableSpan] | None:
    """The queue of spans before the exporter, in the one processor that it has; None if that isn't known."""
    having = [
        processor
        for processor in processors
        if getattr(processor, "span_exporter", None) is exporter
    ]
    queue = getattr(getattr(having[0], "_batch_processor", None), "_queue", None)
    return queue if len(having) == 1 and type(queue) is deque else None


def takes_any_thread(exporter: object) -> bool:
    """Whether it is one of the OpenTelemetry project's. Another may keep what belongs to the thread that asked it first."""
    return type(exporter).__module__.startswith("opentelemetry.exporter.")


def shortest_queue(processors: Sequence[Any]) -> int:
    """The least size of the processors' queues; SDKs before 1.33 keep it in the processor."""
    having = [getattr(processor, "_batch_processor", processor) for processor in processors]
    sizes = [
        getattr(one, "_max_queue_size", None) or getattr(one, "max_queue_size", None)
        for one in having
    ]
    return min([size for size in sizes if size], default=DEFAULT_QUEUE_SIZE)


class ProviderResolver:
    """The provider, found late: the global one may be set after ``instrument()``, and be replaced in tests.

    ``otherwise`` is used while there is no global one. ``found`` is called with each provider that spans go to from now on.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        otherwise: trace.TracerProvider | None = None,
        found: Callable[[trace.TracerProvider], object] | None = None,
    ) -> None:
        self._explicit, self._otherwise, self._on_found = tracer_provider, otherwise, found
        self._provider: Any = None
        self._target: SpanTarget | None = None
        self._warned = self._logged = False

    def resolve(self) -> SpanTarget | None:
        """The target of spans; None without an SDK provider, or if it is disabled. The last target if resolving raises."""
        try:
            provider = self._found()
            if provider is not self._provider:
                self._target = self._target_of(provider)
                if self._target is not None and self._on_found is not None:
                    self._on_found(provider)
                self._provider = provider
            target = self._target
            return target if target is not None and target.is_enabled() else None
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            if not self._logged:
                self._logged = True
                _logger.exception(
                    "otel-recfn: the tracer provider raised; spans go where they went before"
                )
            return self._target

    @property
    def lacks_provider(self) -> bool:
        """Whether none was given, and the global one was not set so far."""
        return isinstance(self._found(), trace.ProxyTracerProvider)

    def _found(self) -> trace.TracerProvider:
        provider = self._explicit or trace.get_tracer_provider()
        is_set = not isinstance(provider, trace.ProxyTracerProvider)
        return provider if is_set or self._otherwise is None else self._otherwise

    def _target_of(self, provider: trace.TracerProvider) -> SpanTarget | None:
        if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
            return None
        tracer = provider.get_tracer(SCOPE_NAME, __version__, schema_url=SCHEMA_URL)
        if all(hasattr(tracer, part) for part in _TRACER_PARTS):
            return SpanTarget(provider, tracer, provider is not self._otherwise)
        if not self._warned and not isinstance(tracer, trace.NoOpTracer):
            self._warned = True
            _logger.warning(
                "otel-recfn: %s is not a tracer provider of opentelemetry-sdk, so operators don't become spans; "
                "pass tracer_provider=opentelemetry.sdk.trace.TracerProvider(...) to instrument()",
                type(provider).__qualname__,
            )
        return None


def _flattened(processor: Any) -> list[Any]:
    """The processors within one."""
    inner = getattr(processor, "_span_processors", None)
    return [processor] if inner is None else [found for one in inner for found in _flattened(one)]


def pickled_parts(provider: Any) -> bytes | None:
    """The parts from which a child that isn't forked makes a provider, if it has none; None if this is none of the SDK's.

    Spans that we export ourselves need no processors, but the resource and the sampler.
    """
    for sampler in (
        getattr(provider, "sampler", None),
        None,
    ):  # where it can't be pickled, the child has the default
        with suppress(Exception):  # another kind of provider
            return pickle.dumps(
                (
                    dict(provider.resource.attributes),
                    provider.resource.schema_url,
                    pickle.dumps(sampler),
                )
            )
    return None


def provider_from(parts: bytes) -> TracerProvider | None:
    """The child's provider; None if it can't be made."""
    try:
        attributes, schema_url, pickled = pickle.loads(parts)
        sampler = None
        with suppress(Exception):  # the child may not have its class
            sampler = pickle.loads(pickled)
        return TracerProvider(sampler, Resource(attributes, schema_url), shutdown_on_exit=False)
    except Exception:
        return None
