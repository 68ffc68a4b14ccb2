"""The source of Python calls: traces them in every thread, also those that run already.

By ``sys.monitoring`` where CPython has it and a place for one more tool is free, else by the profile function of each thread.
For each thread there is the stack of calls that were seen to begin:

    call    name of the code object ─► Recorder.begin_call ─► push
    return                             Recorder.end        ◄─ pop

An exit ends the innermost call, also where a greenlet has switched stacks meanwhile. So calls always nest. One of a frame whose
call isn't on the stack ends none: it began long before, or another tool of ``sys.monitoring`` raised at its begin or return, of
which CPython tells as of one more end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from otel_recfn import _native
from otel_recfn.model.events import EventSource
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.sources.calls.monitoring import Monitoring
from otel_recfn.sources.calls.texts import ProgramTexts
from otel_recfn.sources.protocol import Wanted, Watcher
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.own_thread import OwnThread, is_own_thread

log = logging.getLogger("otel_recfn")

_active: CallSource | None = None
"""The one that traces: there is one profile function in a thread."""


class CallTracer:
    """Its ranges go to the recorder. From any thread; ``start`` and ``stop`` by one at a time.

    In a forked child calls are recorded from when all else of ours is as it should be in a child: before, recording one might
    wait for a lock that another thread of the parent held.
    """

    def __init__(self) -> None:
        self._left_alone = 0
        self._profiles = False
        """Whether it traces by the profile function."""
        self._monitoring = Monitoring()
        around_forks(Order.CALLS, in_child=_native.go_on_after_fork)

    def start(self, texts: ProgramTexts) -> None:
        """Trace every thread that can be had. A thread with another profile function keeps that, and is counted."""
        _native.trace_calls(texts, is_own_thread)
        self._profiles = not self._monitoring.start(c_calls=texts.c_calls)
        if self._profiles:
            self._profile()

    def _profile(self) -> None:
        self._left_alone += _native.profile_calls()
        if not _native.profiles_other_threads():
            log.warning("this CPython has no _PyEval_SetProfile: threads that run already are not traced, later ones are")
        if threading.getprofile() is None:
            threading.setprofile(_native.profile_this_thread)
        else:
            self._left_alone += 1

    def show(self, texts: ProgramTexts) -> None:
        """Calls that begin from now on are called and left out as these say. While it traces."""
        _native.show_calls(texts)
        self._monitoring.change(c_calls=texts.c_calls)

    def look(self, *, last: bool) -> None:
        """At each drain: trace threads again that another profile function has left, and count those that have or had one.

        ``last``: the drain is the last one, so that threads which have been blocked since tracing began get their calls now.
        """
        if not self._profiles:
            self._left_alone += self._monitoring.has_been_taken()
        elif _native.profiles_other_threads():
            self._left_alone += _native.profile_calls()
        if last and self._sees_all_threads():
            threads = [thread for thread in threading.enumerate() if not isinstance(thread, OwnThread)]
            _native.stand_in_for_blocked_threads({thread.ident: thread.native_id or 0 for thread in threads})

    def _sees_all_threads(self) -> bool:
        return _native.profiles_other_threads() if self._profiles else not self._monitoring.is_taken

    def stop(self) -> None:
        """Leave every thread as it was, and end the calls that are open."""
        self._profiles = False
        if threading.getprofile() is _native.profile_this_thread:
            threading.setprofile(None)
        _native.untrace_calls()
        self._monitoring.stop()

    def threads_left_alone(self) -> int:
        """How many had another profile function when tracing began or for a while of it, since the process began.

        A place among the tools of ``sys.monitoring`` that the program took away while it traced counts as one.
        """
        return self._left_alone


class CallSource(Watcher):
    """A source: ranges of Python calls while it is enabled.

    Args:
        tracer: makes them.
        texts: what calls are called, of those that are asked for.
    """

    name = "python_calls"
    announces: EventSource | None = EventSource.PYTHON_CALL

    def __init__(self, tracer: CallTracer, texts: Callable[[PythonCalls], ProgramTexts]) -> None:
        self._tracer, self._texts = tracer, texts
        self._shown: PythonCalls | None = None
        """What it traces now."""
        self._told = False
        """Of another profiler, while it traces."""

    def enable(self, wanted: Wanted) -> None:
        """Trace what is wanted now, unless another session of the process traces."""
        global _active
        if _active not in (None, self):
            log.warning("Python calls are traced already by another session; this one doesn't see them")
        elif _active is None:
            _active, self._shown = self, wanted.calls
            self._start(self._texts(wanted.calls))
        elif wanted.calls != self._shown:
            self._shown = wanted.calls
            self._tracer.show(self._texts(wanted.calls))

    def _start(self, texts: ProgramTexts) -> None:
        self._told = False
        self._telling(partial(self._tracer.start, texts))

    def look(self, *, last: bool) -> None:
        """See Watcher.look."""
        if _active is self:
            self._telling(partial(self._tracer.look, last=last))

    def _telling(self, find: Callable[[], None]) -> None:
        before = self._tracer.threads_left_alone()
        find()
        if self._tracer.threads_left_alone() != before and not self._told:
            self._told = True
            log.warning("another profiler is or was active and is left alone: calls of its threads are not traced meanwhile")

    def disable(self) -> None:
        """Stop tracing, if it is this one that traces."""
        global _active
        if _active is self:
            self._telling(self._tracer.stop)
            _active = None
