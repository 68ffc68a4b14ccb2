"""One of the traces that we start, if it is recorded.

    short traces of a worker ──[a]──[b]──────[  c        ]
                               └ continue_short: a, b and c are one trace, with the root of a

Its outermost ranges are those of its thread from ``begin`` up to ``until``, by their event ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import SpanContext

from otel_recfn.model.batch import Track
from otel_recfn.sinks.spans.span_target import RootStart

TRAINING = "training step"
"""The name of the root of a training step that nothing marks."""
MIN_WORKER_NS = 1_000_000
"""The minimum time of a worker's trace that is sent by itself. A worker that collates a batch now
and then has a trace of some operators for each, and a shorter one continues with the next.
"""


@dataclass(eq=False, slots=True)
class StepTrace:
    """A trace that we started."""

    start: RootStart
    thread: Track
    name: str
    """The root span's name."""
    start_ns: int
    end_ns: int
    first: int = 0
    """The event id of the range by which it is known."""
    begin: int = 0
    """The event id of the range with which it begins here: ``first``, unless the program knows it
    by an earlier one.
    """
    until: int = 0
    """The event id before which its outermost ranges began."""
    number: int = -1
    """The number of the training step in its thread, from 0; -1 if no optimizer has stepped in
    it.
    """
    in_worker: bool = False
    """Whether it is a worker process's, whose duration means nothing, since it waits for the
    process that it works for.
    """
    began_ns: int = 0
    """When its first range began; later than ``start_ns`` if it continues others."""
    short_ns: int = 0
    """The time of the traces that it continues, which were too short, without pauses between."""
    is_published: bool = False
    folded: int = 0
    """The number of its ranges that have no span of their own."""
    extra_attributes: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes of the root span, of the whole trace."""

    @property
    def context(self) -> SpanContext:
        """The root span's context."""
        return self.start.context

    @property
    def is_too_short(self) -> bool:
        """Whether it is not sent by itself."""
        return self.in_worker and self.short_ns + self.end_ns - self.began_ns < MIN_WORKER_NS

    def continue_short(self, before: StepTrace) -> None:
        """Take the place of a trace that was too short, and has the same root."""
        self.start_ns = before.start_ns
        self.short_ns = before.short_ns + before.end_ns - before.began_ns
        before.is_published = True
