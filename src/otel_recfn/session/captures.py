"""The captures that run: what they want together, and who sees what of what was drained.

As long as only one capture has run, what was recorded is its view. When others have joined it, each gets a view of its own,
made from batches that have copies of the open ranges (``batches/selection.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import NamedTuple

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.session.capture import Capture
from otel_recfn.sources.protocol import Wanted


class _Due(NamedTuple):
    """What a capture has not got yet."""

    capture: Capture
    batch: Batch
    last: bool


class Captures:
    """Changed and delivered to by one thread at a time: the session sees to that. Looked at by any."""

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self._views = False
        """Whether others have joined the first, or it sees less than what is recorded for it."""
        self._due: deque[_Due] = deque()

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._running))

    def __contains__(self, capture: Capture) -> bool:
        return capture in self._running

    def __len__(self) -> int:
        return len(self._running)

    @property
    def need_open_ranges(self) -> bool:
        """Whether what is drained has to have copies of the ranges that are open."""
        return self._views

    def begin(self, capture: Capture) -> None:
        """The only one."""
        self._running, self._views = [capture], not capture.selected.is_all_that_is_recorded

    def join(self, capture: Capture, batch: Batch | None) -> None:
        """Beside others, after a batch with copies of what is open was delivered to them; None where none could be drained."""
        if batch is not None:
            for other in self._running if not self._views else ():
                other.selection.go_on_after(batch)
            capture.selection.begin_after(batch)
        self._views = True
        self._running.append(capture)

    def leave(self, capture: Capture) -> None:
        """It gets nothing more."""
        self._running.remove(capture)

    def leave_all(self) -> None:
        """None gets anything more."""
        self._running = []

    def deliver(self, batch: Batch, leaving: Capture | None) -> None:
        """Hand each capture its view; the one that is ``leaving`` has what is open in it, as partial ranges.

        A sink that is being written to may drain, or start and stop captures: who has not got this batch yet gets it before the
        next one then.
        """
        self._due.extend(_Due(capture, batch, capture is leaving) for capture in self._running)
        while self._due:
            capture, due, last = self._due.popleft()
            view = capture.selection.view(due, last=last) if self._views else _without_copies(due)
            if len(view) or view.opened:
                capture.write(view)

    def after_fork_in_child(self) -> None:
        """They go on, with sinks of the child's own."""
        self._due.clear()
        for capture in self:
            capture.after_fork_in_child()

    def wanted(self, ending: Container[Capture] = ()) -> Wanted:
        """The least that has all that they ask for; the ranges of those that are ``ending`` are not shown any more."""
        scopes, extras, sources, profilers, shown = 0, Extra.NONE, frozenset[EventSource](), False, None
        for capture in self:
            asked = capture.selected
            scopes, extras, sources = scopes | asked.scopes, extras | asked.extras, sources | asked.sources
            profilers = profilers or asked.profiler is not None
            shown = capture.shown if capture.shown is not None and capture not in ending else shown
        return Wanted(scopes, extras, sources, profilers, shown)

    def buffer_bytes(self) -> int:
        """The largest buffer per thread that one of them asks for."""
        return max(capture.buffer_bytes for capture in self)


def _without_copies(batch: Batch) -> Batch:
    return batch if batch.closed == len(batch) else batch.take(slice(batch.closed), opened=batch.opened)
