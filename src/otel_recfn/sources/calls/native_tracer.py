"""Traces calls natively: every thread, also those that run already, where CPython lets us.

Raises:
    ImportError: on import, where the native part was not built.
"""

from __future__ import annotations

import threading

from otel_recfn import _native
from otel_recfn.sources.calls.protocol import CallTexts
from otel_recfn.support.forks import Order, around_forks
from otel_recfn.support.own_thread import is_own_thread


class NativeTracer:
    """A CallTracer. Its ranges go to the native recorder.

    In a forked child calls are recorded from when all else of ours is as it should be in a child: before, recording one might
    wait for a lock that another thread of the parent held.
    """

    def __init__(self) -> None:
        self._left_alone = 0
        around_forks(Order.CALLS, in_child=_native.go_on_after_fork)

    def start(self, texts: CallTexts) -> None:
        """See CallTracer.start."""
        self._left_alone += _native.trace_calls(texts, is_own_thread)
        if threading.getprofile() is None:
            threading.setprofile(_native.trace_this_thread)
        else:
            self._left_alone += 1

    def show(self, texts: CallTexts) -> None:
        """See CallTracer.show."""
        _native.show_calls(texts)

    def stop(self) -> None:
        """See CallTracer.stop."""
        if threading.getprofile() is _native.trace_this_thread:
            threading.setprofile(None)
        _native.untrace_calls()

    def threads_left_alone(self) -> int:
        """See CallTracer.threads_left_alone."""
        return self._left_alone

    def threads_cut_short(self) -> int:
        """See CallTracer.threads_cut_short: none."""
        return 0
