"""The contract between a background sink and an inner sink that knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from otel_recfn.sinks.lost_places import LostAt


@runtime_checkable
class ToldOfGaps(Protocol):
    """A sink that has to know where batches didn't come through."""

    def note_gap(self) -> None:
        """Batches were lost between the last and the next."""


class Paces(Protocol):
    """The pace of a sink's work."""

    def __call__(self, owed_s: float = 0.0) -> None:
        """Called between pieces of work; ``owed_s``: the sink should rest so many seconds at least, unless it is late."""


@runtime_checkable
class PacedSink(ToldOfGaps, Protocol):
    """A sink that knows that it runs in the background."""

    def set_pace(self, pace: Paces) -> None:
        """``pace`` is to be called now and then between pieces of work; it may sleep, or raise to end the work."""

    def set_backlog(self, has_more: Callable[[], bool]) -> None:
        """``has_more``: whether another batch follows as soon as the sink has written this one. For the worker's thread."""

    def set_dropped(self, dropped: Callable[[], int], dropped_at: Callable[[], LostAt]) -> None:
        """How many rows were dropped before the sink, and where, as far as that is known. For the worker's thread."""

    def note_gap(self) -> None:
        """Batches were lost between the last and the next."""

    def is_hopeless(self) -> bool:
        """Whether nobody takes what is left, so that the end of a process need not wait for it. From any thread."""

    def idle(self) -> bool:
        """Nothing came for ``IDLE_S`` seconds. Returns whether it is to be called again after as many."""

    def give_up(self) -> None:
        """The time is over: what is left counts as lost. From any thread, also while another one waits in a method."""


@runtime_checkable
class ToldOfDrops(Protocol):
    """A sink that says in what it writes that rows are missing there."""

    def tell_dropped(self, dropped: Callable[[], int]) -> None:
        """``dropped`` gives how many rows never came here. From any thread."""
