"""Observers that are not ours, PyTorch's profilers for instance: while there are some, ranges are told to them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from otel_recfn.model.scope import RecordScope


class RangeToTell(NamedTuple):
    """A range that begins."""

    name: str
    scope: RecordScope
    inputs: Sequence[Any]
    sequence_nr: int
    forward_thread_id: int
    debug_handle: int
    is_async: bool


class RangeElsewhere(Protocol):
    """A range that others see."""

    def end(self, is_async: bool, /) -> None:
        """End it there; in any thread, once. ``is_async``: it was, as is known now."""


class OtherObservers(Protocol):
    """Who tells them."""

    def begin(self, told: RangeToTell, /) -> RangeElsewhere | None:
        """Begin the range for those that observe the calling thread; None where nobody does. Must not raise."""


class NotTold:
    """Stands for a range that others see by themselves, or that was not told to them."""

    __slots__ = ()

    def end(self, _is_async: bool) -> None:
        """Nothing to end."""


NOT_TOLD = NotTold()


class Others:
    """Read ``told`` at the begin of a range; ``callback_lists.tell_others`` writes it."""

    told: OtherObservers | None = None
    """Who tells them; None while there are none in the process."""
