"""The contract between the session and a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from otel_recfn.model.batch import Batch

NO_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""


class Sink(Protocol):
    """Receives every sealed batch of a capture, in order, from one thread at a time.

    A sink that raises is closed, taken out of its capture and logged once; the other sinks go on. After a MemoryError it
    goes on too, and misses that batch; so a ``write`` that raises one counts nothing of the batch. It is given nothing twice.

    It may have six attributes more:

    * ``flushes_beside_writes``, true where ``flush`` may be called from any thread, also while another one writes, so that
      drains go on while it waits. Without it: false, and nothing is drained meanwhile.
    * ``wants_unsampled``, false where it has no use for ranges in spans that are not sampled: where no sink has any, they are
      not recorded. Without it: true.
    * ``tells_of_spans``, false where it never tells of the program's spans around ranges: where no sink does, they are not kept
      alive for that. Without it: true.
    * ``write_open``, a method that is given the ranges which have been open for ``open_range_s`` seconds, as partial rows that
      end now: every quarter of that time all that there are, and an empty batch when there are none any more. ``write`` has
      each of them when it ends. Without it: it isn't told.
    * ``note_drained``, a method that is called after each drain, with when that began, in Unix nanoseconds, and whether a
      ``flush`` follows: what had ended by then has been written, also where the drain found nothing to write. Without it: it
      isn't told.
    * ``process_ends``, a method that is called before ``close`` where the process ends: with the seconds that the end may wait
      for what is outside of this machine. Without it: it isn't told.
    """

    name: str
    """Short and stable: it stands in log messages and before what the sink counts."""

    def write(self, batch: Batch) -> None:
        """Take a batch. Called on the drain thread: must not wait for the network."""

    def flush(self, timeout_s: float) -> bool:
        """Make what was written visible where it goes; False when ``timeout_s`` seconds were not enough."""

    def close(self, timeout_s: float) -> None:
        """The last call. Finish within ``timeout_s`` seconds, count what had to be given up."""

    def counters(self) -> Mapping[str, int]:
        """What it lost since it was made, as ``dropped.<reason>``; see ``model/counters.py``."""

    def after_fork_in_child(self) -> Sink | None:
        """The sink that a forked child goes on with (a fresh one, sharing no file, lock or thread), or None for no sink."""


def wants_unsampled(sink: Sink) -> bool:
    """Whether ranges in spans that are not sampled are of use to a sink."""
    return bool(getattr(sink, "wants_unsampled", True))


def tells_of_spans(sink: Sink) -> bool:
    """Whether a sink may tell of the program's spans around ranges, also when these are over."""
    return bool(getattr(sink, "tells_of_spans", True))


def is_told_of_open_ranges(sink: Sink) -> bool:
    """Whether a sink wants to know of ranges that have been open for long."""
    return hasattr(sink, "write_open")
