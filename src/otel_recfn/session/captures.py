"""The running captures: what they ask for together, and which view of a drained batch each of them gets.

As long as only one capture has run, what was recorded is its view. When others have joined it, each gets a view of its own,
made from batches that have copies of the open ranges (``batches/selection.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from otel_recfn.model.batch import Batch
from otel_recfn.model.errors import OUT_OF_MEMORY, tells_of_no_memory
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.python_calls import together
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES
from otel_recfn.session.capture import Capture, Due, View, whole
from otel_recfn.sources.protocol import Wanted


@dataclass(eq=False)
class Drained:
    """A batch, and what each capture that ran when it was drained has to get of it."""

    batch: Batch
    due: list[tuple[Capture, Due]]


class Captures:
    """The session lets one thread at a time change them or deliver to them; any thread may read."""

    def __init__(self) -> None:
        self._running: list[Capture] = []
        self._views = False
        """Whether views are needed: there was more than one capture, or the only one wants less than is recorded for it."""
        self.alone = True
        """Whether there has never been another one beside the one that began first, of those that run or ran last."""
        self.drained: list[Drained] = []
        """What not all captures have taken yet, in order."""
        self.ending: set[Capture] = set()
        """Those that are being stopped, running or not."""

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

    def begin(self, capture: Capture) -> bool:
        """Add the first capture; False where others are there."""
        if self._running:
            return False
        self._views, self.alone = not capture.selected.is_all_that_is_recorded, True
        self._running.append(capture)
        if self._running[0] is capture:
            return True
        self._running.remove(capture)  # a signal handler has added one in between
        return False

    def join(self, capture: Capture, batch: Batch | None, since_serial: int) -> None:
        """Add a capture beside others.

        Args:
            capture: to add.
            batch: delivered to those, with copies of open ranges; None: its drain failed.
            since_serial: the recorder's, from before that drain.
        """
        if batch is not None:
            for other in self:
                if not self._views:
                    other.selection.go_on_after(batch)
            capture.selection.begin_after(batch, since_serial)
        self._views, self.alone = True, False
        self._running.append(capture)

    def leave(self, capture: Capture) -> None:
        """Remove a capture, if it is there: it gets no more batches."""
        if capture in self._running:
            try:
                self._running.remove(capture)
            except ValueError:  # a signal handler has done it in between
                pass

    @property
    def open_range_s(self) -> float | None:
        """The shortest time after which one of them is told of an open range; None: none of them is."""
        return min([capture.open_range_s for capture in self if capture.open_range_s is not None], default=None)

    def due(self, batch: Batch, leaving: Capture | None, look: bool = False) -> Drained:
        """Who gets what of a batch that is drained now.

        Args:
            batch: the batch.
            leaving: a capture that ends when all is drained: it also gets the open ranges then, as partial ones.
            look: captures are told which ranges are open for long.
        """
        last_for, look = leaving if batch.complete else None, look and batch.complete
        return self._all_due(batch, partial(_seen, last_for=last_for, look=look) if self._views else whole, look)

    def due_beside(self, produced: Batch, drained: Batch) -> Drained:
        """The same for a producer's batch; ``drained`` is what the recorder had just before."""
        return self._all_due(produced, partial(_seen_beside, drained=drained) if self._views else whole)

    def _all_due(self, batch: Batch, view: View, look: bool = False) -> Drained:
        return Drained(batch, [(capture, Due(batch, view, look)) for capture in self])

    def hand_out(self) -> None:
        """Hand each capture what was drained for it.

        A sink that is being written to, or a signal handler, may drain, or start and stop captures: who has not got a batch yet
        gets it before the next one then.

        Raises:
            MemoryError: there was none for all, or a sink has no room; the rest waits.
        """
        while self.drained:
            self._give(self.drained[:1])
        waits = False
        for capture in self:
            try:
                capture.go_on()
            except OUT_OF_MEMORY:  # by itself: to ask about an error may need memory
                waits = True
            except Exception as error:
                if not tells_of_no_memory(error):
                    raise
                waits = True
        if waits:
            raise MemoryError

    def _give(self, first: list[Drained]) -> None:
        for drained in first:  # none where a signal handler has given it
            for capture, due in drained.due:
                capture.take(due)
            with suppress(ValueError):
                self.drained.remove(drained)

    def after_fork_in_child(self) -> None:
        """In a child: the captures go on with sinks of the child's own."""
        self.drained = []
        for capture in self:
            capture.after_fork_in_child()

    @property
    def all_end(self) -> bool:
        """Whether each is being stopped, or there is none."""
        return all([capture in self.ending for capture in self])

    def wanted(self) -> Wanted | None:
        """The smallest selection with all that they ask for, None without any; ranges of those that end are no longer shown."""
        if not self:
            return None
        scopes, extras, sources, profilers, shown = 0, Extra.NONE, frozenset[EventSource](), False, None
        for capture in self:
            asked = capture.selected
            scopes, extras, sources = scopes | asked.scopes, extras | asked.extras, sources | asked.sources
            profilers = profilers or asked.profiler is not None
            shown = capture.shown if capture.shown is not None and capture not in self.ending else shown
        sampled_alone = not any([capture.wants_unsampled for capture in self])
        calls = together([each.selected.calls for each in self if EventSource.PYTHON_CALL in each.selected.sources])
        told = any([capture.tells_of_spans for capture in self])
        return Wanted(scopes, extras, sources, profilers, shown, sampled_alone, calls, told)

    def buffer_bytes(self) -> int:
        """The largest buffer per thread that one of them asks for."""
        return max([capture.buffer_bytes for capture in self], default=DEFAULT_BUFFER_BYTES)


def _seen(capture: Capture, batch: Batch, *, last_for: Capture | None, look: bool) -> Batch:
    return capture.selection.view(batch, last=capture is last_for, copies=look)


def _seen_beside(capture: Capture, produced: Batch, *, drained: Batch) -> Batch:
    return capture.selection.view_beside(produced, drained)
