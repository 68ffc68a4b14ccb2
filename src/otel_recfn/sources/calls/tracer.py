"""Traces calls, in every thread, also those that run already.

By ``sys.monitoring`` where CPython has it and a place for one more tool is free, else by the profile function of each thread.
"""

from __future__ import annotations

import logging
import threading

from otel_recfn import _native
from otel_recfn.sources.calls.monitoring import Monitoring
from otel_recfn.sources.calls.protocol import CallTexts
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.own_thread import OwnThread, is_own_thread

log = logging.getLogger("otel_recfn")


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

    def start(self, texts: CallTexts) -> None:
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

    def show(self, texts: CallTexts) -> None:
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
