"""The running captures: what they ask for together, and which view of a drained batch each of them gets.

As long as only one capture has run, what was recorded is its view. When others have joined it, each gets a view of its own,
made from batches that have copies of the open ranges (``batches/selection.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.session.capture import Capture
from otel_recfn.sources.protocol import Wanted


class Captures:
    """The session lets one thread at a time change them or deliver to them; any thread may read."""

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self._views = False
        """Whether views are needed: there was more than one capture, or the only one wants less than is recorded for it."""
        self._due: deque[tuple[Capture, Callable[[Capture], Batch]]] = deque()
        """Views that have not been handed out yet."""

    def __iter__(self) -> Iterator[Capture]:
        return iter(list(self._running))

    def __contains__(self, capture: Capture) -> bool:
        return capture in self._running

    def __len__(self) -> int:
        return len(self._running)

    @property
    def need_open_ranges(self) -> bool:
        """Whether drains have to include copies of the open ranges."""
        return self._views

    def begin(self, capture: Capture) -> None:
        """Add the first capture."""
        self._running, self._views = [capture], not capture.selected.is_all_that_is_recorded

    def join(self, capture: Capture, batch: Batch | None) -> None:
        """Add a capture beside others. ``batch``: delivered to those, with copies of open ranges; None: its drain failed."""
        if batch is not None:
            for other in self._running if not self._views else ():
                other.selection.go_on_after(batch)
            capture.selection.begin_after(batch)
        self._views = True
        self._running.append(capture)

    def leave(self, capture: Capture) -> None:
        """Remove a capture: it gets no more batches."""
        self._running.remove(capture)

    def leave_all(self) -> None:
        """Remove all captures."""
        self._running = []

    def deliver(self, batch: Batch, leaving: Capture | None) -> None:
        """Hand each capture its view of a batch; the capture that is ``leaving`` also gets the open ranges, as partial ones.

        A sink that is being written to may drain, or start and stop captures: who has not got this batch yet gets it before the
        next one then.
        """

        def view(capture: Capture) -> Batch:
            return capture.selection.view(batch, last=capture is leaving) if self._views else _without_copies(batch)

        self._hand_out(view)

    def deliver_beside(self, produced: Batch, drained: Batch) -> None:
        """Hand each capture its view of a producer's batch; ``drained`` is what the recorder had just before."""

        def view(capture: Capture) -> Batch:
            return capture.selection.view_beside(produced, drained) if self._views else produced

        self._hand_out(view)

    def _hand_out(self, view: Callable[[Capture], Batch]) -> None:
        self._due.extend((capture, view) for capture in self._running)
        while self._due:
            capture, view_of = self._due.popleft()
            seen = view_of(capture)
            if len(seen) or seen.opened:
                capture.write(seen)

    def after_fork_in_child(self) -> None:
        """In a child: the captures go on with sinks of the child's own."""
        self._due.clear()
        for capture in self:
            capture.after_fork_in_child()

    def wanted(self, ending: Container[Capture] = ()) -> Wanted:
        """The smallest selection with all that they ask for; ranges of captures that are ``ending`` are no longer shown."""
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
