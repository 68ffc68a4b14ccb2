"""What rows index: tracks, which are threads or what else has events of its own, and span contexts."""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.model.events import TrackKind


class Track(NamedTuple):
    """A track of events: a thread that recorded something, or what else has events of its own.

    Where it is no thread, it has a number and a name alone, and is nobody's thread in what sinks say.
    """

    number: int
    """The recorder's own number, from 1, never reused: the upper bits of the track's event ids."""
    thread_id: int
    """RecordFunction's logical thread id (PyTorch's where PyTorch is observed, else the recorder's number); 0 for no thread."""
    native_id: int
    """The operating system's thread id (``threading.get_native_id()``)."""
    ident: int
    """``threading.get_ident()`` of the thread; 0 where it has none."""
    name: str
    """Python's name of the thread; empty where it has none. Else what a trace calls the track."""
    kind: TrackKind = TrackKind.THREAD

    @property
    def is_thread(self) -> bool:
        """Whether it is a thread of this process."""
        return self.kind == TrackKind.THREAD


class SpanContextRef(NamedTuple):
    """The OpenTelemetry span that was current; all zero where none was."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits."""
    trace_state: str = ""
    """As in the W3C header ``tracestate``; empty where there is none."""


NO_CONTEXT = SpanContextRef(0, 0, 0)
