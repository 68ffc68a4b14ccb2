"""The contract between the session and a source, which tells the recorder what happens in the
program.

    a capture starts    [the module that the source needs is imported ►] prepare ► enable(wanted)
    others come and go  enable(wanted), again with each change of what is wanted together
    the last one ends   the last drain ► disable

While it is enabled, a source calls ``begin``, ``end``, ``mark`` and ``memory`` of ``_native``, from
any thread; where nothing is recorded, they cost little. A new source is a module, an
``EventSource`` for its rows, and a line in ``session/sources.py``.

A forked child goes on with its sources as they are. What one holds that doesn't survive a fork (a
lock, a thread, a file) it makes anew itself: ``support/forks.py`` says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from otel_recfn.model.events import ALL_SCOPES_MASK, EventSource, Extra
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls
from otel_recfn.sources.range_spans import ExposedRanges


@dataclass(frozen=True)
class Wanted:
    """The union of what the running captures ask for.

    Attributes:
        scopes: a bit per RecordScope.
        extras: what is recorded at a price.
        sources: whose rows.
        profilers: one of the captures sees the rows of a profiler run alone.
        exposed: the ranges that the program sees as current spans; None for none.
        calls: which Python calls, where ``sources`` has them.
    """

    scopes: int = ALL_SCOPES_MASK
    extras: Extra = Extra.NONE
    sources: frozenset[EventSource] = frozenset(EventSource)
    profilers: bool = False
    exposed: ExposedRanges | None = None
    calls: PythonCalls = ALL_CALLS


class Source:
    """A source.

    If it raises, it is disabled and logged once; the program and the other sources go on.
    """

    name: str
    """A short and stable name, for log messages."""

    announces: EventSource | None = None
    """The ``source`` of its rows, by which captures ask for it; None: it has no rows and serves
    every capture.
    """
    needs: str | None = None
    """The module that the program has to import before, ``"torch"`` for instance; None: it can
    be enabled at once.
    """
    check: Callable[..., None] | None = None
    """A check, before each drain, that all is as it left it, if others may disturb it.

    It must not wait. From one thread at a time, with ``last``: whether the last capture ends with
    that drain.
    """

    def prepare(self) -> bool:
        """Do what takes long before ``enable``, with no lock held; does nothing if that is done.

        From any thread.

        False if the source can't be had here, after it said in the log why: it isn't enabled then.
        """
        return True

    def enable(self, wanted: Wanted) -> None:
        """Announce ranges from now on, or change to what is wanted now.

        The recorder may not have been started yet.
        """

    def disable(self) -> None:
        """Announce nothing more, and leave the program as it was; called even if it wasn't
        enabled.

        Open ranges were sealed.
        """
