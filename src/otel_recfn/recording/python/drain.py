"""The draining side of the Python twin: takes what the threads recorded, and keeps what it found no memory for.

Memory may run out at any allocation, and a signal handler may raise anywhere: what was taken and not delivered waits here, each
record in one place only, so that a drain that failed can simply be run again. That a record may be replayed twice makes no
difference.

No function is made in a drain, not even a generator expression, and ``dict.setdefault`` isn't called: where there is no memory
for them, CPython 3.13 crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns, time_ns
from typing import TYPE_CHECKING

from otel_recfn.model.clock import ClockMapping, Ticks
from otel_recfn.model.errors import OUT_OF_MEMORY, RecfnError
from otel_recfn.recording.python.clocks import read_clocks
from otel_recfn.recording.python.log import Record, TakenRecords, ThreadLog

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch
    from otel_recfn.recording.protocol import Keep
    from otel_recfn.recording.python.batch import BatchBuilder
    from otel_recfn.recording.python.pairing import Pairing
    from otel_recfn.recording.python.task import Recording
    from otel_recfn.recording.python.threads import ThreadLogs

MAX_WAITING = 1 << 16
"""Records and rows that wait for memory to deliver them in; beyond it no more are taken from the threads' logs."""
NEVER = 1 << 63


class Drain:
    """The drain of one recorder; one thread at a time runs it.

    Args:
        threads: whose records it takes.
        split_flags: see Recorder.split_flags.

    Attributes:
        lost: what was recorded and given up.
        too_late: begins that were still on their way when their recording had ended.
    """

    def __init__(self, threads: ThreadLogs, split_flags: Callable[[int], tuple[int, str]]) -> None:
        self._threads, self._split_flags = threads, split_flags
        self.start_empty()

    def start_empty(self) -> None:
        """Called when it is made, and in a forked child."""
        self._pairing: Pairing | None = None
        self._taken = TakenRecords()
        self._unsealed: BatchBuilder | None = None
        self._running = False
        self.lost = self.too_late = self._jump_ns = 0
        self._ended_at = self._earlier_ended_at = NEVER
        self._passed_over = 0
        self._clock = ClockMapping(read_clocks())

    def begin_recording(self, earlier: Recording) -> None:
        """A recording begins: its ranges get Unix times by the wall clock as it is now, and ``earlier`` ones nothing more.

        A signal handler may begin it in the middle of the earlier one's last drain, which then goes on with what it has.
        """
        unsealed, pairing, lost = self._unsealed, self._pairing, self.lost
        self._clock.begin(read_clocks())
        if unsealed is not None:
            unsealed.drop_copies()
            lost += len(unsealed)
        if pairing is not None:
            lost += pairing.count_open(unsealed)
            _tell_all_closed(pairing, earlier)
        self._unsealed, self._pairing, self.lost = None, None, lost  # last, because there may be no memory for the rest
        self._earlier_ended_at = self._ended_at

    def end_recording(self) -> None:
        """What begins from here on is too late."""
        self._ended_at = perf_counter_ns()

    def run(self, recording: Recording, close_open: bool, open_ranges: bool, keep: Keep | None) -> Batch:
        """See Recorder.drain. ``recording`` is told what is closed here.

        Raises:
            RecfnError: a signal handler that interrupts a drain calls.
        """
        if self._running:
            raise RecfnError(
                "a signal handler drains in the middle of a drain, which only the native recorder can do: what was recorded "
                "comes with the next drain, but a profile that ends in this handler has none of it"
            )
        pairing, builder = self._begun()
        try:
            self._running, self._unsealed = True, None
            batch = self._run_into(builder, pairing, recording, close_open, open_ranges)
            if keep is not None:
                keep.into.append(keep.entry_of(batch))
            self._jump_ns = 0
            return batch
        except BaseException as error:
            self._keep(builder)
            if not isinstance(error, OUT_OF_MEMORY):
                raise
            if close_open:
                self._discard(builder, pairing, recording)
            if isinstance(error, MemoryError):
                raise
            raise MemoryError(str(error)) from error
        finally:
            self._running = False

    def _begun(self) -> tuple[Pairing, BatchBuilder]:
        """What the last drain left behind, or new ones. A signal handler may raise here: nothing is taken away yet."""
        from otel_recfn.recording.python.batch import BatchBuilder
        from otel_recfn.recording.python.pairing import Pairing

        pairing = self._pairing = self._pairing or Pairing()
        builder = self._unsealed if self._unsealed is not None else BatchBuilder(self._split_flags)
        return pairing, builder

    def _run_into(
        self, builder: BatchBuilder, pairing: Pairing, recording: Recording, close_open: bool, open_ranges: bool
    ) -> Batch:
        """The batch, which the builder still has, too."""
        drained_ns = time_ns()
        builder.drop_copies()
        self._anchor(pairing)
        logs, dead = self._threads.look()
        complete = self._taken.size + len(builder) < MAX_WAITING
        if complete:
            self._take_records(logs, NEVER if close_open else perf_counter_ns())
        self._taken.replay(partial(self._replay, recording, pairing, builder))
        now = self._clock.monotonic_ns(Ticks(perf_counter_ns()))
        if close_open and complete:
            for item in pairing.innermost_first():
                _tell_closed(item.log, item.event_id, recording)
                pairing.close_partial(item, now, builder)
        if open_ranges:
            builder.begin_copies()
            pairing.copy_open(now, builder)
        if complete:
            self._bury(dead, pairing)
        return builder.seal(self._jump_ns, drained_ns, complete)

    def _keep(self, builder: BatchBuilder) -> None:
        """Keep the rows that were built, for the next drain."""
        other, self._unsealed = self._unsealed, builder
        if other is not None and other is not builder:  # a signal handler drained meanwhile, and failed too
            self.lost += len(other)

    def _discard(self, builder: BatchBuilder, pairing: Pairing, recording: Recording) -> None:
        """Give up, and count, what was recorded and not delivered."""
        taken = TakenRecords()
        builder.drop_copies()
        lost = len(builder) + pairing.count_open(builder)
        _tell_all_closed(pairing, recording)
        for log, event_id in self._taken.begun():
            if not pairing.has_seen(event_id, builder):
                lost += 1
                _tell_closed(log, event_id, recording)
        self.lost += lost
        self._unsealed, self._pairing, self._taken = None, None, taken

    def _replay(self, recording: Recording, pairing: Pairing, builder: BatchBuilder, record: Record) -> None:
        """Replay a record. What began before this recording belongs to nobody in it, whenever its record was written."""
        ticks, _, event_id, what, _ = record
        if isinstance(what, int) or what[-1] is recording or what[-1].is_current:
            pairing.replay(self._clock, builder, record)
        elif event_id != self._passed_over:  # memory may end before it is taken away
            if ticks > self._earlier_ended_at:
                self.too_late += 1
            else:
                self.lost += 1
            self._passed_over = event_id

    def _anchor(self, pairing: Pairing) -> None:
        jump_ns = self._clock.anchor(read_clocks())
        if jump_ns:
            self._jump_ns += jump_ns
            pairing.note_jump()

    def _take_records(self, logs: list[ThreadLog], until: int) -> None:
        # Nothing younger than ``until`` is taken: it may lie in a range of a thread whose log was read before. Of the ends on
        # other threads only those that are there now are taken, because their begins are certainly in a log already. They are
        # taken last, so that where ticks are equal an end comes after its begin.
        ended_elsewhere = self._threads.ended_elsewhere
        count = len(ended_elsewhere)
        for log in logs:
            self._taken.take(log.records, len(log.records), until)
        self._taken.take(ended_elsewhere, count, until)

    def _bury(self, dead: list[ThreadLog], pairing: Pairing) -> None:
        for log in dead:
            if not log.records and not pairing.has_open(log):
                pairing.forget(log)
                self._threads.bury(log)


def _tell_all_closed(pairing: Pairing, recording: Recording) -> None:
    for item in pairing.innermost_first():
        _tell_closed(item.log, item.event_id, recording)


def _tell_closed(log: ThreadLog, event_id: int, recording: Recording) -> None:
    log.ended_elsewhere.append(event_id)
    recording.ended(event_id)
