"""The process's recorder: what sources record by ``_native``'s functions (``_native.pyi``), as
batches.

    source threads                         drain (one thread at a time)
    begin/end ──► own buffer, bounded ──►  pair, name, nest, seal ──► Batch

A recorder never raises into the thread that records. What doesn't fit the thread's buffer is
dropped and counted: a dropped begin drops its end, so that what remains still nests.

Raises:
    RecorderUnavailable: on import, where there is no native part (``support/native_part.py``).
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from otel_recfn import _native
from otel_recfn.model.events import IDLE_NS, SHORT_IDLE_NS, Extra
from otel_recfn.recording.types import FLAGS, ContextReading, RecorderCounters, trace_states
from otel_recfn.recording.watched import unwatch, watch
from otel_recfn.support.forks import follow_fork
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log
from otel_recfn.support.threads import threads_are_greenlets

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch, Track, TrainingStep

PACKAGE = Path(__file__).parents[1]
_MAX_REMEMBERED_THREADS = 4096
SOON_SECONDS = 0.1
"""The seconds after which a drain would come, if there is one."""


class Recorder:
    """The recorder.

    Ranges begin and end in any thread; start, stop and drain are for one thread at a time.

    Its state lives in the extension module, so ``recorder`` below is the only one.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._woken = threading.Event()
        """The event on which greenlets wait."""
        self._epoch = 0
        self._when_recorded: Callable[[], object] | None = None
        self._thread_names: dict[int, str] = {}
        _native.set_own_directory(str(PACKAGE) + os.sep)
        self.set_context_reader(None)

    def start(
        self,
        scopes: int,
        buffer_bytes: int,
        extras: Extra = Extra.NONE,
        sampled_alone: bool = False,
    ) -> None:
        """Record ranges whose scope's bit is set in ``scopes``, and those of SOURCES_WITHOUT_SCOPES
        whatever it is.

        Where nothing was recorded, what began before belongs to nobody from now on, drained or not.
        Calling it while recording changes the scopes and extras. ``buffer_bytes`` bounds the buffer
        of each thread; one that has recorded before keeps a larger bound. With Extra.STACK ranges
        that Python begins carry the stack that led to them, unless they are of
        RecordScope.BACKWARD_FUNCTION; the other extras are for whoever calls ``begin`` and
        ``memory``.

        ``sampled_alone``: nobody wants ranges that become no spans. Where the context reader says
        of a range outside other recorded ones that its span is not sampled, or that instrumentation
        is suppressed, the range is counted as ``unsampled`` and not recorded; so is what lies in
        it, up to a change of the context. Nor are marks and memory there.

        It imports what ``drain`` needs: a thread of ours must not.
        """
        from otel_recfn.model import batch  # noqa: F401

        watch(self)
        _native.start(scopes, buffer_bytes, extras, sampled_alone)

    def stop(self) -> None:
        """Record no more begins. Ends of recorded ranges are accepted until the final drain."""
        _native.stop()
        unwatch(self)

    @property
    def extras(self) -> Extra:
        """The extras of the last ``start``."""
        return Extra(_native.extras())

    def drain(
        self, *, close_open: bool = False, open_ranges: bool = False, end_steps: bool = False
    ) -> Batch:
        """The rows that closed since the last drain, sealed; ranges that are still open wait for a
        later drain.

        ``close_open`` seals those too, as EventFlag.PARTIAL with ``end_ns`` now: the capture ends
        here. ``open_ranges`` adds copies of them, partial too, beyond ``Batch.closed``, the
        innermost of a thread first; they stay open. Training steps that go on are copied, too, as
        ``Batch.unfinished_steps``. ``end_steps`` ends the training steps in which nothing is open:
        what follows belongs to another one. Where there is no memory, what was
        read is lost, and counted as ``lost_in_drain``.
        """
        # The program's spans end by the wall clock, and those of steps by the recorder's, which may
        # differ by microseconds.
        drained_ns = min(time.time_ns(), _native.moment().unix_ns)
        drained = _native.drain(
            close_open=close_open,
            open_ranges=open_ranges,
            end_steps=end_steps,
            idle_ns=IDLE_NS,
            short_idle_ns=SHORT_IDLE_NS,
            epoch=self._epoch,
            known=len(self._names),
        )
        try:
            return self._batch(drained, drained_ns)
        except BaseException:  # also at a KeyboardInterrupt: nobody gets these rows any more
            _native.count_discarded(drained.closed)
            raise

    def discard_unread(self) -> None:
        """Count what was recorded and not drained as lost: no drain follows before a start."""
        _native.discard_unread()

    def _batch(self, drained: _native.Drained, drained_ns: int) -> Batch:
        from otel_recfn.model.batch import Batch, Sample, SpanContextRef, drain_columns

        if drained.epoch != self._epoch:  # batches of an earlier epoch keep the earlier list
            self._names, self._epoch = [], drained.epoch
        self._names.extend(drained.new_names)
        tracks = self._tracks(drained.threads)
        contexts = [
            SpanContextRef(
                row.trace_high << 64 | row.trace_low,
                row.span_id,
                *((row.flags, "") if row.flags <= FLAGS else trace_states.split(row.flags)),
            )
            for row in drained.contexts
        ]
        return Batch(
            **drain_columns(drained.rows, drained.opened, self._names),
            names=self._names,
            tracks=tracks,
            contexts=contexts,
            closed=drained.closed,
            clock_jump_ns=drained.clock_jump_ns,
            drained_ns=drained_ns,
            steps=_training_steps(drained.steps),
            unfinished_steps=_training_steps(drained.unfinished_steps),
            samples=[
                Sample(
                    name=self._names[row.name],
                    thread=tracks[row.thread],
                    time_ns=row.time_ns,
                    duration_ns=row.duration_ns,
                    parent=row.parent,
                    context=contexts[row.context],
                    last_begun=row.last_begun,
                    since_ns=row.since_ns,
                    is_directly_in_span=row.is_directly_in_span,
                    is_in_operator=row.is_in_operator,
                    waits_for=self._names[row.waits_for],
                    item=self._names[row.item],
                )
                for row in drained.samples
            ],
        )

    def wait(self, timeout_s: float) -> None:
        """Wait until ``wake``, until a thread has filled a quarter of its buffer, or for
        ``timeout_s`` seconds.
        """
        if threads_are_greenlets():
            self._woken.wait(timeout_s)  # the native wait would hold up all greenlets
            self._woken.clear()
        else:
            _native.wait(timeout_s)

    def wake(self) -> None:
        """End a wait, or the next one before it begins."""
        _native.wake()
        self._woken.set()

    def call_when_recorded(self, call: Callable[[], object]) -> None:
        """Call a function once, when a thread that Python knows has recorded its first range from
        now on, or soon after.

        The call may come from another thread, and while a range begins. Later calls of this replace
        earlier ones.
        """
        self._when_recorded = call

    def counters(self) -> RecorderCounters:
        """The counts of what was recorded and of what was lost."""
        counted = _native.counters()
        return RecorderCounters(
            dropped=counted.dropped,
            lost_ends=counted.lost_ends,
            lost_in_drain=counted.lost_in_drain,
            unsampled=counted.unsampled,
        )

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        """Set the function that reads the current OpenTelemetry context; None: there is none.

        It is called in the recording thread, with the GIL, when a range begins directly below
        Python code and the thread's context may have changed: after OpenTelemetry's ``attach`` or
        ``detach``, where a step begins or ends, or after a switch of the contextvars context.
        Where it raises, the range has no parent span.
        """
        self._read_failed = False
        _native.set_context_reader(reader, self._note_thread, self._is_the_programs)

    def _is_the_programs(self, error: BaseException) -> bool:
        """Whether the look at the context raised an error of the program's; another one is
        logged, once.
        """
        if raised_by_signal_handler(error):
            return True
        if not self._read_failed:
            self._read_failed = True
            text = (
                "the current OpenTelemetry context cannot be read; ranges here have no parent span"
            )
            log.error(text, exc_info=error)
        return False

    def _note_thread(self, number: int) -> bool:
        """Note the name of the calling thread at its first look at the context: it may be gone when
        the drain comes.

        Returns whether Python started the thread.
        """
        # The native part has forgotten the name of the thread that forked, so its first range in
        # the child comes here.
        follow_fork()
        call, self._when_recorded = self._when_recorded, None
        if call is not None:
            self._call_soon(call)
        ident = threading.get_ident()
        for thread in threading.enumerate():
            if thread.ident == ident:
                self._remember(number, thread.name)
                # The class that stands for a thread that others started.
                return type(thread).__name__ != "_DummyThread"
        return False

    def _call_soon(self, call: Callable[[], object]) -> None:
        """Call it in another thread, since this one begins a range and may hold locks that
        ``threading.Thread`` takes.
        """
        try:
            _thread.start_new_thread(_call_later, (call,))
        except RuntimeError:  # no thread can be started: the next thread that records tries again
            self._when_recorded = self._when_recorded or call

    def _remember(self, number: int, name: str) -> None:
        if len(self._thread_names) >= _MAX_REMEMBERED_THREADS:
            self._thread_names.pop(next(iter(self._thread_names)), None)
        self._thread_names[number] = name

    def _tracks(self, threads: list[_native.ThreadRow]) -> list[Track]:
        from otel_recfn.model.batch import Track

        # A thread that has ended leaves its ident to the next one that starts, so the number that
        # the system gave it has to be the same too.
        living = {(thread.ident, thread.native_id): thread.name for thread in threading.enumerate()}
        infos = []
        for row in threads:
            name = living.get((row.ident, row.native_id)) or self._thread_names.get(row.number, "")
            if name and row.number not in self._thread_names:
                self._remember(row.number, name)
            infos.append(
                Track(
                    number=row.number,
                    thread_id=row.thread_id,
                    native_id=row.native_id,
                    ident=row.ident if name else 0,
                    name=name,
                )
            )
        return infos


def _call_later(call: Callable[[], object]) -> None:
    time.sleep(SOON_SECONDS)
    call()


def _training_steps(steps: list[_native.TrainingStep]) -> list[TrainingStep]:
    from otel_recfn.model.batch import TrainingStep

    return [
        TrainingStep(
            number=step.number,
            first=step.first,
            last=step.last,
            start_ns=step.start_ns,
            end_ns=step.end_ns,
            thread=step.thread,
            context=step.context,
            is_marked=step.is_marked,
        )
        for step in steps
    ]


recorder = Recorder()
"""The one recorder of the process."""
