"""The end of the process: exit handlers, and processes that run none."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from opentelemetry import metrics, trace

from otel_recfn.support.processes import is_beginning


class ExitHandler:
    """Has a function called at exit before the handlers that shut the providers of spans and of metrics down.

    Exit handlers run last in, first out, so ours has to be registered after the providers'. One that was set right at the end
    is seen when Python begins to wait for threads, before it runs exit handlers. ``concurrent.futures`` is told of that by a
    function of ``threading`` with a private name; without it, a provider is seen a tenth of a second after it was set.

    Args:
        at_exit: is called.
    """

    def __init__(self, at_exit: Callable[[], None]) -> None:
        self._at_exit = at_exit
        self._providers: tuple[object, object] = (None, None)
        self._finishes_in = 0
        """The process in which multiprocessing was asked already."""
        register: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
        if register is not None:
            with suppress(RuntimeError):  # Python waits already
                register(partial(_follow_last, weakref.ref(self)))

    def follow_provider(self) -> None:
        """Register the function, again if one of the providers is another one than the last time."""
        spans, measured = trace.get_tracer_provider(), metrics.get_meter_provider()
        if spans is not self._providers[0] or measured is not self._providers[1]:
            self._providers = (spans, measured)
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def finish_in_multiprocessing_child(self) -> None:
        """Where this process is a child of multiprocessing that no fork has made known, register with it, once."""
        processes, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
        if processes is None or util is None or self._finishes_in == os.getpid():
            return
        self._finishes_in = os.getpid()
        if processes.parent_process() is not None or is_beginning():
            util.Finalize(None, self._at_exit, exitpriority=0)
        if is_beginning():  # a process of a fork server still forgets what is registered
            self.finish_in_forked_child()

    def finish_in_forked_child(self) -> None:
        """Register with multiprocessing: its children end by ``os._exit``, which runs its finalizers but no exit handlers."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
            util.register_after_fork(self, lambda living: util.Finalize(None, living._at_exit, exitpriority=0))

    def follow_last(self) -> None:
        """``follow_provider``, where anything is registered."""
        if self._providers != (None, None):
            self.follow_provider()

    def unregister(self) -> None:
        """Take the registration back."""
        atexit.unregister(self._at_exit)
        self._providers = (None, None)


def _follow_last(handler: weakref.ref[ExitHandler]) -> None:
    living = handler()
    if living is not None:
        living.follow_last()
