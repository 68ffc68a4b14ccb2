"""How finished spans leave: through the provider's span processors, or another way that has the same two parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opentelemetry.trace import TracerProvider

from otel_recfn.sinks.lost_places import LostAt
from otel_recfn.sinks.spans.delivery import SpanDelivery
from otel_recfn.sinks.spans.mapping import SpanMapper
from otel_recfn.sinks.spans.provider import SpanTarget


class Delivery(Protocol):
    """Hands spans on; ``delivery.py`` says what each method is for."""

    drives: bool
    """Everything is to go out now: nothing is held back."""

    @property
    def holds(self) -> bool:
        """Whether spans should wait where there is no room, instead of being made room for."""

    @property
    def chunk_size(self) -> int:
        """How many spans are handed on at once."""

    def use(self, target: SpanTarget) -> None:
        """Spans are of this target from now on."""

    def has_room(self, spans: int) -> bool:
        """Whether nothing has to be waited for until this many spans fit."""

    def make_room(self, spans: int, pace: Callable[[], None]) -> None:
        """Wait until this many spans fit."""

    @property
    def lost(self) -> int:
        """Spans that certainly nobody took."""

    @property
    def lost_tellings(self) -> int:
        """What these told of earlier losses (``told_losses.py``)."""

    @property
    def lost_at(self) -> LostAt:
        """Where that is known: how many of the lost ones, and what they told (``told_losses.py``)."""

    def deliver(self, spans: Sequence[Any], told: int = 0) -> None:
        """Hand on these spans, as the mapper made them or the SDK's; the first tells of so many losses."""

    def idle(self) -> None:
        """Nothing has been written for a while."""

    def flush(self, timeout_s: float) -> bool:
        """Export what was handed on."""

    def hurry(self, timeout_s: float) -> None:
        """The program ends."""

    @property
    def is_failing(self) -> bool:
        """Whether nobody takes spans now."""

    @property
    def has_failed(self) -> bool:
        """Whether the last of what was sent was not taken."""

    def process_ends(self) -> None:
        """``remove`` is the end of what our spans may cost the program."""

    def remove(self) -> None:
        """Leave everything as it was found. From any thread, also while another one waits in a method."""

    def counters(self) -> Mapping[str, int]:
        """What became of the spans."""


class WayOut(Protocol):
    """One of the ways."""

    @property
    def provider(self) -> TracerProvider | None:
        """Whose spans they are where the program has no provider; None: then there are none."""

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """What makes spans of ranges."""

    def delivery(self, exports_beside: bool) -> Delivery:
        """What hands them on; see ``SpanDelivery``."""

    def after_fork_in_child(self) -> WayOut:
        """The same in a forked child."""


class ThroughProcessors:
    """To the provider's span processors."""

    provider: TracerProvider | None = None

    def mapper(self, target: SpanTarget) -> SpanMapper:
        """Spans of the SDK."""
        return SpanMapper(target)

    def delivery(self, exports_beside: bool) -> Delivery:
        """In chunks that they have room for."""
        return SpanDelivery(exports_beside)

    def after_fork_in_child(self) -> WayOut:
        """The same."""
        return self
