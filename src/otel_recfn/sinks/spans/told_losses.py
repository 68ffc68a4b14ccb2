"""What never arrived, told in the trace: the first span of a range that is made after a loss is known says how much was lost.

Such a span may be lost itself. Then what it told counts as lost once more, and a later one tells it: all that arrived tell of
all that was lost before the last of them was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

DROPPED = "recfn.dropped"
"""The attribute: ranges that were dropped before they became spans, and spans that nobody took."""


class Losing(Protocol):
    """A delivery, as far as it is asked here."""

    @property
    def lost(self) -> int:
        """Spans of ours that certainly nobody took."""

    @property
    def lost_tellings(self) -> int:
        """What the DROPPED attributes of these said, together."""


def nothing_lost() -> int:
    """Where nobody counts."""
    return 0


class ToldLosses:
    """Of one sink.

    Args:
        delivery: of its spans.
        recorder_lost: ranges that the recorder has lost in all.
    """

    def __init__(self, delivery: Losing, recorder_lost: Callable[[], int] = nothing_lost) -> None:
        self._delivery, self._recorder_lost = delivery, recorder_lost
        self._recorder_lost_before = recorder_lost()
        self.queue_dropped: Callable[[], int] = nothing_lost
        """Ranges that were dropped before the sink got them."""
        self.told = 0
        """What spans have said, together, whatever became of them."""

    def due(self, failed: int) -> int:
        """What the next span is to tell. ``failed``: ranges that there was no memory for."""
        lost = self._recorder_lost() - self._recorder_lost_before + self.queue_dropped() + failed + self._delivery.lost
        return max(0, lost + self._delivery.lost_tellings - self.told)
