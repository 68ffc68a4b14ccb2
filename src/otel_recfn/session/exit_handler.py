"""The exit handler of a process: it runs before those of the providers.

    the program ends                  atexit, registered again behind each new provider
    it sets a provider at the end     threading's own list, which Python runs before exit handlers
    a child of multiprocessing ends   multiprocessing's finalizers: it runs no exit handlers

All of them call one function, which ends the captures that still run.
"""

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
    """An exit handler that runs before those that shut the providers of spans and of metrics down.

    Exit handlers run last in, first out, so ours has to be registered after the providers'. One
    that was set right at the end is seen when Python begins to wait for threads, before it runs
    exit handlers. ``concurrent.futures`` learns of that by a function of ``threading`` with a
    private name; without it, a provider is seen a tenth of a second after it was set.
    """

    def __init__(self, at_exit: Callable[[], None]) -> None:
        self._at_exit = at_exit
        self.providers: tuple[object, object] = (None, None)
        """The providers of spans and of metrics at registration; None while not registered."""
        self._finishes_in = 0
        """The process in which multiprocessing's finalizer was registered."""
        register: Callable[[Callable[[], None]], None] | None = getattr(
            threading, "_register_atexit", None
        )
        if register is not None:
            with suppress(RuntimeError):  # Python is already ending
                register(partial(_follow_last, weakref.ref(self)))

    def follow_provider(self) -> None:
        """Register the function, again if one of the providers is another one than the last
        time.
        """
        providers = trace.get_tracer_provider(), metrics.get_meter_provider()
        if providers != self.providers:
            self.providers = providers
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def finish_in_multiprocessing_child(self) -> None:
        """Register with multiprocessing, once, in a child of it that no fork has made known."""
        processes = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if processes is None or util is None or self._finishes_in == os.getpid():
            return
        self._finishes_in = os.getpid()
        if processes.parent_process() is not None or is_beginning():
            util.Finalize(None, self._at_exit, exitpriority=0)
        if is_beginning():  # a process of a fork server will still drop what is registered now
            self.finish_in_forked_child()

    def finish_in_forked_child(self) -> None:
        """Register with multiprocessing: its children end by ``os._exit``, which runs its
        finalizers but no exit handlers.
        """
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # The child forgets its inherited finalizers right after the fork, and then runs what is
            # registered here.
            util.register_after_fork(
                self, lambda living: util.Finalize(None, living._at_exit, exitpriority=0)
            )

    def unregister(self) -> None:
        """Unregister the function."""
        atexit.unregister(self._at_exit)
        self.providers = (None, None)


def _follow_last(handler: weakref.ref[ExitHandler]) -> None:
    living = handler()
    if living is not None and living.providers != (None, None):
        living.follow_provider()
