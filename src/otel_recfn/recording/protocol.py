"""The contract of a recorder. ``tests/contract`` runs the same tests on every implementation.

    source threads                         drain (one thread at a time)
    begin/end ──► own buffer, bounded ──►  pair, name, nest, seal ──► Batch

A recorder never raises into the thread that records. What doesn't fit the thread's buffer is dropped and counted: a dropped
begin drops its end, so that what remains still nests. Before that, its name is shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from otel_recfn.model.events import Extra
from otel_recfn.ranges.protocol import RangeObserver, RangeRecorder

if TYPE_CHECKING:
    from otel_recfn.model.batch import Batch

DEFAULT_BUFFER_BYTES = 8 << 20
"""Per recording thread. 8 MiB hold 170,000 operators of 48 bytes each."""
PROFILE_BUFFER_BYTES = 256 << 20
"""The same for captures that are to have every range: taken in larger and larger parts, where the drain comes late."""


class ContextReading(NamedTuple):
    """What the context reader saw in the calling thread."""

    trace_id: int
    span_id: int
    flags: int
    """ContextFlag bits, and those that ``Recorder.keep_trace_state`` gave."""
    enclosing: int = 0
    """Event id of the range whose span is the current one; 0 where the current span is the program's own."""
    root: int = 0
    """Event id of the outermost range around ``enclosing``."""
    span: object = None
    """The current span itself: the object that ``span_attached`` was given."""


class TaskRange(Protocol):
    """A range that the calling task is in."""

    @property
    def event_id(self) -> int:
        """The event id of its row."""

    @property
    def root(self) -> int:
        """Event id of the outermost range around it, its own where there is none."""

    @property
    def context_words(self) -> tuple[int, int, int, int]:
        """What was current where that outermost range began: trace id (upper and lower half), span id, the reading's flags."""

    @property
    def is_current(self) -> bool:
        """Whether it belongs to the current recording, or to the last one where none is on."""

    @property
    def scope(self) -> int:
        """Its RecordScope as a number."""

    @property
    def source(self) -> int:
        """Its EventSource as a number."""

    @property
    def began(self) -> int:
        """A number that is larger than that of every range which began before."""

    @property
    def outer(self) -> TaskRange | None:
        """What the task had entered before, also where that has ended; a span, which has no root, or None."""

    shown: Any
    """Used by whoever shows the range to the program as its current span; None at first, and again when the range has ended."""


class RecorderCounters(NamedTuple):
    """Since the process began (since the fork, in a forked child).

    ``recorded`` = rows drained + still open or undrained + ``lost_in_drain``.
    """

    recorded: int
    """Begins, marks and memory reports that were recorded, but for those that were under way when their recording ended."""
    dropped: int
    """Those that were not recorded, because the thread's buffer was full or its ranges nested too deep; nor were their ends."""
    lost_ends: int
    """Ends on another thread that found their queue full; such a range is sealed as partial when its capture ends."""
    lost_in_drain: int = 0
    """Recorded, and given up: the last drain of their recording found no memory for them, or the next one began before it."""
    shortened: int = 0
    """Recorded without what there was no room for: the name (``<many names>`` stands for it), shapes, module or stack."""
    unsampled: int = 0
    """Those that were not recorded, because nobody wanted what lies in the current span (see ``Recorder.start``)."""


class Keep(NamedTuple):
    """Where a drained batch is kept."""

    into: list[Any]
    """Gets an entry for it, at the instant at which the recorder lets go of it."""
    entry_of: Callable[[Batch], Any]
    """Makes the entry. May be called for batches that are not kept after all."""


RECORDER_LOSSES = ("dropped", "lost_ends", "lost_in_drain", "shortened")
"""The counters that say what was lost."""


class Recorder(RangeRecorder, Protocol):
    """All of a recorder; ``ranges/protocol.py`` has the part that ranges of ``record_function`` use.

    Begin and end from any thread; start, stop and drain from one thread at a time.
    """

    record_function: type[Any]
    """The public ``record_function`` of this recorder."""

    def start(self, scopes: int, buffer_bytes: int, extras: Extra = Extra.NONE, sampled_alone: bool = False) -> None:
        """Record ranges whose scope's bit is set in ``scopes``, and those of SOURCES_WITHOUT_SCOPES whatever it is.

        Where nothing was recorded, what began before belongs to nobody from now on, drained or not.
        Calling it while recording changes the scopes and extras. ``buffer_bytes`` bounds the buffer of each thread; one that
        has recorded before keeps a larger bound. With Extra.STACK ranges that Python begins carry the stack that led to them,
        unless they are of RecordScope.BACKWARD_FUNCTION; the other extras are for whoever calls ``begin`` and ``memory``.

        ``sampled_alone``: nobody wants ranges that become no spans. Where the context reader says of a range outside other
        recorded ones that its span is not sampled, or that instrumentation is suppressed, the range is counted as ``unsampled``
        and not recorded; so is what lies in it, up to a change of the context. Nor are marks and memory there.

        It imports what ``drain`` needs: a thread of ours must not, and a signal handler that drains while it is imported would
        find it half imported.
        """

    @property
    def extras(self) -> Extra:
        """As of the last ``start``."""

    def stop(self) -> None:
        """Record no more begins. Ends of recorded ranges are still accepted until the final drain."""

    @property
    def recording(self) -> bool:
        """Whether a begin would be recorded now."""

    def begin(
        self,
        name: str,
        scope: int,
        source: int,
        module: str = "",
        flags: int = 0,
        *,
        sequence_nr: int = -1,
        forward_thread_id: int = 0,
        handle: int = 0,
        debug_handle: int = -1,
        shapes: str = "",
        dtypes: str = "",
        step_number: int = -1,
        code: str = "",
        concrete_inputs: str = "",
        words: str = "",
    ) -> int:
        """See RangeRecorder.begin.

        The keywords are columns of its row, as ``model/columns.py`` describes them; ``handle`` 0 becomes the event id.
        ``limits`` says what is kept of texts.
        """

    def begin_call(self, name: str) -> int:
        """Open a range of EventSource.PYTHON_CALL: a call on this thread's stack. Returns as ``begin`` does.

        It ends by ``end``, in this thread. What begins in the thread lies in it, whatever the task, unless something that the
        calling task is in (a range, or the span that is current) began later. The program doesn't see it as its current span.
        """

    def mark(self, name: str) -> int:
        """Note a moment: a row of EventKind.MARK in this thread. Returns its event id, or 0 when it is not recorded."""

    def say_code(self, code: str) -> None:
        """What this thread's innermost range is a call of, where that is one of PyTorch's: its begin could not say it."""

    def memory(self, nbytes: int, device: str) -> int:
        """Note bytes that were allocated (negative: freed) on ``device``: a row of EventKind.MEMORY, named ``[memory]``.

        Returns its event id, or 0 when it is not recorded: also where Extra.MEMORY was not asked for.
        """

    def set_profiler(self, profiler: int) -> None:
        """From here on this thread's rows belong to that profiler run (32 bits); 0 for none."""

    def profiler(self) -> int:
        """The profiler run that this thread's next row belongs to."""

    def set_thread_enabled(self, enabled: bool) -> bool:
        """Set whether what begins in this thread is recorded, from any source; returns the setting before. Ends always are."""

    def thread_enabled(self) -> bool:
        """That setting. Where PyTorch is observed it is PyTorch's switch of the thread, whoever sets it."""

    def current_thread_id(self) -> int:
        """RecordFunction's logical id of this thread: PyTorch's where PyTorch is observed, else the recorder's number of it.

        Never reused, and new in a forked child.
        """

    def new_track(self) -> int:
        """A thread number that no thread has, for ranges that none begins: those of a GPU's stream, say.

        ``make_event_id`` of it and of numbers from 1 gives event ids that no other range of the process has. Never reused; a
        forked child needs another one.
        """

    def set_default_node_id(self, node_id: int) -> None:
        """Set this process's number in a distributed run, for rows from the next drain on. -1: PyTorch's own, if it has one."""

    def default_node_id(self) -> int:
        """The number that was set; else PyTorch's own where PyTorch is observed; else -1."""

    def drain(self, *, close_open: bool = False, open_ranges: bool = False, keep: Keep | None = None) -> Batch:
        """Everything that closed since the last drain, sealed; ranges that are still open wait for a later drain.

        ``close_open`` seals those too, as EventFlag.PARTIAL with ``end_ns`` now: the capture ends here. ``open_ranges`` adds
        copies of them, partial too, beyond ``Batch.closed``, the innermost of a thread first; they stay open. With ``keep`` a
        signal handler that interrupts this, and drains, finds the batch there if it isn't among what it drains itself.

        Where memory is short, a batch may hold a part only (``Batch.complete``), and the next drain goes on.

        Raises:
            MemoryError: there was none for any part; the next drain has it. With ``close_open`` it is given up instead, and
                counted as ``lost_in_drain``.
        """

    def wait(self, timeout_s: float) -> None:
        """Until ``wake``, until a thread has filled a quarter of its buffer, or until ``timeout_s`` seconds have passed."""

    def wake(self) -> None:
        """End a wait, or the next one before it begins."""

    def call_when_recorded(self, call: Callable[[], object]) -> None:
        """Call this once, when a thread that Python knows has recorded its first range from now on, or soon after it.

        The call may come from another thread, and while a range begins. Later calls of this replace earlier ones.
        """

    def counters(self) -> RecorderCounters:
        """What was recorded and what was lost."""

    def dropped_by_thread(self) -> Mapping[int, int]:
        """What ``counters().dropped`` counts, by number of the thread, of threads that still run."""

    def ranges_after(self, span: object) -> tuple[TaskRange, ...]:
        """The calling task's open ranges that began after ``span`` became current, innermost first.

        All of the task's open ranges, if ``span_attached`` wasn't called for ``span``. Asynchronous ranges count only while the
        task has entered them.
        """

    def serial(self) -> int:
        """A number larger than the ``began`` of every TaskRange so far."""

    def set_context_reader(self, reader: Callable[[], ContextReading | None] | None) -> None:
        """Set the function that reads the current OpenTelemetry context; None: there is none.

        It is called in the recording thread, with the GIL, when a range begins directly below Python code and the thread's
        context may have changed: after one of the three calls below, or after a switch of the contextvars context.
        """

    def keep_trace_state(self, text: str) -> int:
        """A span's trace state (a W3C header) as bits for ``ContextReading.flags``; none for an empty one.

        ``Batch.contexts`` holds the text again. Beyond a limit the texts that were not used for longest are forgotten.
        """

    def split_flags(self, flags: int) -> tuple[int, str]:
        """The ContextFlag bits of such flags, and the trace state in them."""

    def span_attached(self, span: object, token: object) -> None:
        """The calling task attached a context with ``span`` as the new current span; ``token`` is what detaches it."""

    def context_attached(self, token: object) -> None:
        """The calling task attached a context with the same current span as before; ``token`` is what detaches it."""

    def span_detached(self, token: object) -> None:
        """The calling task detached the context that it had attached with that token."""

    @property
    def before_launch(self) -> Callable[[Any], Any]:
        """Gives an object's ``launches``, by which PyTorch is about to launch work: that lies in what is current then."""

    def launching_span(self) -> Any | None:
        """The span that is current in the calling thread because PyTorch works there for another one; None elsewhere."""

    def set_range_observer(self, observer: RangeObserver | None, version: int = 0) -> None:
        """Let ``observer`` open the ranges of ``record_function`` in the recorder's place, also while nothing is recorded.

        Ranges that are open now end the way they began. What the observer raises goes on to the program. A new ``version``
        cancels what ``leave_unobserved`` was told before, in every thread.
        """

    def leave_unobserved(self, ranges: int, version: int) -> int:
        """Don't hand the observer so many of the calling thread's next ranges, as long as its version is this one.

        Returns how many it won't be handed: 0 for a recorder that saves nothing by this.
        """

    def take_back_unobserved(self) -> int:
        """Hand the observer the calling thread's next range again. Returns how many were still to be left to the recorder."""
