"""The session: wires sources, recorder and a capture's sinks, and owns the drain thread, fork and exit.

    start:  recorder on ► context watcher ► torch observer and module hooks (now, or when torch is imported) ► drain thread
    drain:  every 100 ms (20 ms while much is recorded): recorder.drain() ► capture.write(batch)
    stop:   observer off ► recorder off ► last drain, open ranges sealed as partial ► sinks closed ► hooks off

``_draining`` is held over every drain and its delivery, and around fork, so that a child never inherits a half-written sink.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_recfn.capture import Capture
from otel_recfn.model.events import Extra
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.protocol import Recorder, RecorderCounters
from otel_recfn.sources.late_torch import when_torch_is_imported
from otel_recfn.sources.otel_context import ContextWatcher
from otel_recfn.sources.torch_modules import ModuleRanges
from otel_recfn.sources.torch_observer import TorchObserver

log = logging.getLogger("otel_recfn")

DRAIN_SECONDS = 0.1
BUSY_DRAIN_SECONDS = 0.02
BUSY_ROWS = 10_000
EXIT_SECONDS = 5.0
FORK_WAIT_SECONDS = 5.0
LOSSES = ("recorder.dropped", "recorder.lost_ends", ".queue_dropped", ".abandoned", ".spans_failed", "chrome_trace.failed")
"""Endings of the counters that say what was lost; ``recorder.*`` count since the process began."""


class Session:
    """One capture at a time, from ``start`` to ``stop``. Every method may be called from any thread; none but ``start`` raises.

    Args:
        recorder: the process's recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watcher = ContextWatcher(recorder)
        self._observer = TorchObserver(recorder)
        self._modules = ModuleRanges(recorder, self._torch_announces_optimizer)
        self._capture: Capture | None = None
        self._counted: Capture | None = None
        self._call_off_torch: Callable[[], None] = lambda: None
        self._switching = threading.RLock()
        self._draining = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._provider: object = None
        _handle_forks(self)

    def start(self, capture: Capture) -> None:
        """Record for ``capture`` from now on; a capture that is running ends first."""
        with self._switching:
            self.stop(EXIT_SECONDS)
            self._capture = self._counted = capture
            self._watcher.install()
            self._recorder.start(capture.scopes, capture.buffer_bytes)
            self._start_thread()
            self._exit_before_the_provider()
        # Outside the lock: compiling the observer may take seconds, and nobody who forks meanwhile should wait for it.
        self._call_off_torch = when_torch_is_imported(partial(self._attach_torch, capture))

    def stop(self, timeout_s: float) -> None:
        """End the capture: what was recorded goes to its sinks, within ``timeout_s`` seconds."""
        with self._switching:
            capture = self._capture
            if capture is None:
                return
            self._call_off_torch()
            self._observer.disable()
            self._recorder.stop()
            self._stop_thread(timeout_s)
            self._finish(capture, timeout_s)
            self._modules.remove()
            self._watcher.remove()
            atexit.unregister(self._at_exit)
            self._tell_losses()

    def _finish(self, capture: Capture, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if not self._draining.acquire(timeout=timeout_s):
            self._capture = None
            log.warning("a sink has been busy for over %s s; what was recorded last is given up", timeout_s)
            return
        try:
            self._drain(close_open=True)
            self._capture = None
            capture.close(max(0.0, deadline - time.monotonic()))
        finally:
            self._draining.release()

    def flush(self, timeout_s: float) -> bool:
        """Drain and flush every sink; False when ``timeout_s`` seconds were not enough, or nothing runs."""
        deadline = time.monotonic() + timeout_s
        if not self._draining.acquire(timeout=timeout_s):
            return False
        try:
            self._drain()
            return self._capture is not None and self._capture.flush(max(0.0, deadline - time.monotonic()))
        finally:
            self._draining.release()

    def counters(self) -> dict[str, int]:
        """Counts of the recorder (of the process) and of the running capture, or the last one."""
        names = RecorderCounters._fields
        counts = {f"recorder.{name}": value for name, value in zip(names, self._recorder.counters(), strict=True)}
        return counts | (self._counted.counters() if self._counted is not None else {})

    def _tell_losses(self) -> None:
        lost = {name: count for name, count in self.counters().items() if name.endswith(LOSSES) and count}
        if lost:
            log.warning("not everything that ran was kept: %s", ", ".join(f"{name}={count}" for name, count in lost.items()))

    def _attach_torch(self, capture: Capture) -> None:
        observable = self._observer.prepare()
        with self._switching:
            if self._capture is not capture:
                return
            if observable:
                self._observer.enable(Extra.SHAPES if capture.record_shapes else Extra.NONE)
            if capture.modules:
                self._modules.install()

    def _torch_announces_optimizer(self) -> bool:
        capture = self._capture
        return self._observer.enabled and capture is not None and bool(capture.scopes & 1 << RecordScope.USER_SCOPE)

    def _start_thread(self) -> None:
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._wake,), name="otel-recfn drain", daemon=True)
        self._thread.start()

    def _stop_thread(self, timeout_s: float) -> None:
        thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, wake: threading.Event) -> None:
        pause = DRAIN_SECONDS
        with suppress_instrumentation():
            while not wake.wait(pause):
                rows = self._drain()
                pause = BUSY_DRAIN_SECONDS if rows > BUSY_ROWS else DRAIN_SECONDS
                self._exit_before_the_provider()

    def _drain(self, *, close_open: bool = False) -> int:
        with self._draining:
            if self._capture is None:
                return 0
            try:
                batch = self._recorder.drain(close_open=close_open)
            except Exception:
                log.exception("draining failed; what was recorded since the last drain may be lost")
                return 0
            if len(batch) or batch.opened:
                self._capture.write(batch)
            return len(batch)

    def _exit_before_the_provider(self) -> None:
        """Exit handlers run last in, first out: ours has to be younger than the one that shuts the provider down."""
        provider = trace.get_tracer_provider()
        if provider is self._provider:
            return
        self._provider = provider
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        self.stop(EXIT_SECONDS)

    def _before_fork(self) -> None:
        self._switching.acquire()
        if not self._draining.acquire(timeout=FORK_WAIT_SECONDS):
            log.warning("a sink took longer than %s s while the program forked", FORK_WAIT_SECONDS)

    def _after_fork_in_parent(self) -> None:
        _release(self._draining)
        _release(self._switching)

    def _after_fork_in_child(self) -> None:
        self._switching, self._draining = threading.RLock(), threading.RLock()
        self._thread = None
        if self._capture is None:
            return
        self._capture.after_fork_in_child()
        self._start_thread()
        _finish_in_multiprocessing_child(self)


def _release(lock: threading.RLock) -> None:
    try:
        lock.release()
    except RuntimeError:  # the wait before the fork ran out: it isn't ours
        pass


def _handle_forks(session: Session) -> None:
    if not hasattr(os, "register_at_fork"):
        return
    held = weakref.ref(session)

    def forward(name: str) -> Callable[[], None]:
        def handle() -> None:
            living = held()
            if living is not None:
                getattr(living, name)()

        return handle

    os.register_at_fork(
        before=forward("_before_fork"),
        after_in_parent=forward("_after_fork_in_parent"),
        after_in_child=forward("_after_fork_in_child"),
    )


def _finish_in_multiprocessing_child(session: Session) -> None:
    """multiprocessing leaves its children with ``os._exit``: no exit handler runs, but its finalizers do."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # The child forgets its inherited finalizers right after the fork, and then runs what is registered here.
        util.register_after_fork(session, lambda living: util.Finalize(None, living._at_exit, exitpriority=0))
