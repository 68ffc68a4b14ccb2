"""The contract between the session and a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from otel_recfn.model.batch import Batch

NO_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""


class Sink(Protocol):
    """Receives every sealed batch of a capture, in order, from one thread at a time. Derive from it: the last two methods do
    nothing then, unless a sink has its own.

    A sink that raises is closed, taken out of its capture and logged once; the other sinks go on. After a MemoryError it
    goes on too, and misses that batch; so a ``write`` that raises one counts nothing of the batch. It is given nothing twice.
    """

    name: str
    """Short and stable: it stands in log messages and before what the sink counts."""

    def write(self, batch: Batch) -> None:
        """Take a batch, one for each drain, also where nothing is in it. Called on the drain thread: must not wait for the
        network."""

    def flush(self, timeout_s: float) -> bool:
        """Make what was written visible where it goes; False when ``timeout_s`` seconds were not enough.

        From any thread, also while another one writes.
        """

    def close(self, timeout_s: float) -> None:
        """The last call. Finish within ``timeout_s`` seconds, count what had to be given up."""

    def counters(self) -> Mapping[str, int]:
        """What it lost since it was made, as ``dropped.<reason>``; see ``model/counters.py``."""

    def after_fork_in_child(self) -> Sink | None:
        """The sink that a forked child goes on with (a fresh one, sharing no file, lock or thread), or None for no sink."""

    def wants_unsampled(self) -> bool:
        """Whether it has a use for ranges in spans that are not sampled: where no sink has any, they are not recorded."""
        return True

    def write_open(self, ranges: Batch) -> None:
        """Take the ranges that have been open for ``open_range_s`` seconds, as partial rows that end now.

        Every quarter of that time all that there are, and an empty batch when there are none any more; ``write`` has each of
        them when it ends.
        """
        return
