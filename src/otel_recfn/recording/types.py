"""What a recorder is told and tells, as small types, and the sizes of its buffers: without the native part."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_BUFFER_BYTES = 8 << 20
"""Per recording thread. 8 MiB hold 170,000 operators of 48 bytes each."""
PROFILE_BUFFER_BYTES = 256 << 20
"""The same for captures that are to have every range: taken in larger and larger parts, where the drain comes late."""


class ContextReading(NamedTuple):
    """What the context reader saw in the calling thread."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits, and those that ``Recorder.keep_trace_state`` gave."""
    enclosing: int = 0
    """Event id of the range whose span is the current one; 0 where the current span is the program's own."""
    root: int = 0
    """Event id of the outermost range around ``enclosing``."""
    span: object = None
    """The current span itself: the object that ``span_attached`` was given."""


class RecorderCounters(NamedTuple):
    """Of begins, marks and memory reports, since the process began (since the fork, in a forked child)."""

    dropped: int = 0
    """Those that were not recorded, because the thread's buffer was full or its ranges nested too deep; nor were their ends."""
    lost_ends: int = 0
    """Ends on another thread that found their queue full; such a range is sealed as partial when its capture ends."""
    lost_in_drain: int = 0
    """Recorded, and given up: there was no memory for them in a drain, or the next recording began before their last drain."""
    unsampled: int = 0
    """Those that were not recorded, because nobody wanted what lies in the current span (see ``Recorder.start``)."""

    def since(self, before: RecorderCounters) -> dict[str, int]:
        """What came since then, by the names of ``model/counters.py``."""
        more = RecorderCounters(*[now - then for now, then in zip(self, before, strict=True)])
        return {
            "unsampled": more.unsampled,
            "dropped.buffer_full": more.dropped,
            "dropped.error": more.lost_in_drain,
            "incomplete": more.lost_ends,
        }
