"""Who hears of the program's spans, which files show.

instrument() runs          the span processor of its sink, which delivers, too
profiles and legacy runs   a listener at the global tracer provider, unless instrument() runs
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from otel_recfn.session.capture import Capture
from otel_recfn.support.interruptions import ignoring_errors
from otel_recfn.support.span_log import span_log

if TYPE_CHECKING:
    from otel_recfn.sinks.spans.listener import SpanListener

SDK = "opentelemetry.sdk.trace"


class SpanListening:
    """Follows the captures: one thread at a time may call it."""

    def __init__(self) -> None:
        self._listener_at: Callable[[Any], SpanListener | None] | None = None
        """The function that makes a listener at a provider; None until the SDK is imported."""
        self._listener: SpanListener | None = None
        """The listener at a provider; None if none is needed."""
        self._provider: object = None
        """The global provider that is listened to, if it can be; None if none is needed."""

    def prepare(self) -> None:
        """Import what listening takes, in a thread of the program's: ours import nothing.

        A program without the SDK has no spans to hear of, and doesn't pay for its import.
        """
        if self._listener_at is None and SDK in sys.modules:
            from otel_recfn.sinks.spans.provider import listener_at

            self._listener_at = listener_at

    def follow(self, captures: Iterable[Capture]) -> None:
        """Hear of spans as these captures, which are all that run, need it."""
        running = list(captures)
        is_wanted = any(each.names_spans for each in running)
        span_log.set_wanted(is_wanted)
        has_other = any(each.spans is not None for each in running)
        provider = trace.get_tracer_provider() if is_wanted and not has_other else None
        if provider is self._provider:
            return
        self._provider = provider
        with ignoring_errors():  # of a provider of another vendor's
            if self._listener is not None:
                self._listener.remove()
            self._listener = None
            if provider is not None and self._listener_at is not None:
                self._listener = self._listener_at(provider)
