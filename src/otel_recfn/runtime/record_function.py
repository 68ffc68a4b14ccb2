"""``RecordFunction``: one range that callbacks and the recorder see (source: ``at::RecordFunction``).

    RecordFunction(scope)   picks the callbacks; a range that is not active costs no more
    before(name, inputs)    recorder.begin, then start callbacks in their order; inputs are readable meanwhile
    end()                   end callbacks in the same order, then recorder.end; once

The recorder's row encloses the callbacks, so that its event id can be the range's handle while they run. Handles that the
runtime gives itself, where nothing is recorded, count from 2**39: PyTorch's are small numbers, event ids are 2**40 and more.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from otel_recfn.model.arguments import INT64, UINT32, UINT64, whole_number
from otel_recfn.model.errors import RecfnError
from otel_recfn.model.events import EventFlag, EventSource, Extra
from otel_recfn.model.scope import RecordScope
from otel_recfn.ranges.async_range import NOT_RECORDED, RecordedRange
from otel_recfn.recording.protocol import RangeHandle
from otel_recfn.runtime import callbacks, process_recorder, thread_locals
from otel_recfn.runtime.input_texts import input_texts
from otel_recfn.runtime.sampling import StartEndPair, StepCallbacks
from otel_recfn.runtime.step_callbacks import get_step_callbacks, leave_next_unobserved
from otel_recfn.support.error_text import error_text
from otel_recfn.support.interrupts import raised_by_signal_handler

PARAM_COMMS_CALL_NAME = "record_param_comms"
"""The name under which PyTorch announces collectives (source: ``at::kParamCommsCallName``)."""
FIRST_HANDLE = 1 << 39

# Plain ints: arithmetic on an IntFlag costs a microsecond.
ASYNC, OUT_VARIANT = int(EventFlag.ASYNC), int(EventFlag.STATIC_RUNTIME_OUT_VARIANT)
NCCL_META, SHAPES, SOURCE = int(EventFlag.NCCL_META), int(Extra.SHAPES), int(EventSource.RECORD_FUNCTION)

_handles = itertools.count(FIRST_HANDLE)
_NOTHING = {scope: StepCallbacks((), 0, scope) for scope in RecordScope}

T = TypeVar("T")


class OperatorName(NamedTuple):
    """Of an operator, as its schema says."""

    name: str
    overload_name: str


class InputsError(RecfnError):
    """Inputs were asked for outside the start callback."""


class RecordFunction:
    """A range: ``with RecordFunction(scope) as range_: range_.before(name)``; or ``before`` and ``end`` in different places.

    Its accessors are those of the reference. After ``end`` they say nothing useful, and hold nothing of the program's alive.

    Args:
        scope: of the range; or what ``get_step_callbacks`` returned for it.
    """

    __slots__ = (
        "__weakref__",
        "_contexts",
        "_debug_handle",
        "_flags",
        "_fn",
        "_forward_thread_id",
        "_handle",
        "_inputs",
        "_kwinputs",
        "_num_inputs",
        "_open",
        "_outputs",
        "_sequence_nr",
        "_step",
        "event_id",
    )

    _fn: Any
    _inputs: Sequence[Any] | None
    _kwinputs: Mapping[str, Any] | None
    _outputs: Sequence[Any]
    _contexts: list[Any]

    def __init__(self, scope: RecordScope | StepCallbacks = RecordScope.FUNCTION) -> None:
        self._open = False
        self._step = scope if isinstance(scope, StepCallbacks) else get_step_callbacks(scope)
        self.event_id = 0
        """Of the recorder's row; 0 where none is recorded."""
        self._flags = self._forward_thread_id = 0
        self._debug_handle = -1
        self._forget()

    # --- the range

    def before(
        self,
        fn: Any,
        inputs: Sequence[Any] = (),
        kwinputs: Mapping[str, Any] | None = None,
        sequence_nr: int = -1,
    ) -> None:
        """Begin: run the start callbacks. Nothing happens where the range is not active, or has begun.

        Args:
            fn: the range's name; or an operator's schema, with ``name``, ``overload_name``, ``arguments`` and ``returns``.
            inputs: readable for callbacks while they start.
            kwinputs: the same, by name.
            sequence_nr: of the forward operator, which its backward node has too.

        Raises:
            TypeError: ``fn`` or ``inputs`` is something else, whether the range is active or not.
            SettingError: ``sequence_nr`` is no 64-bit number.
        """
        _check(fn, inputs, sequence_nr)
        if self._open or not self.is_active():
            return
        self._fn, self._sequence_nr, self._num_inputs = fn, sequence_nr, len(inputs)
        if self.name() == PARAM_COMMS_CALL_NAME:
            self._flags |= NCCL_META
        self._open = True
        try:
            self._begin_row(inputs)
            self._run_starts(inputs, kwinputs or {})
        except BaseException as interrupt:  # the program never comes to its own end() now
            self.end(error_text(interrupt))
            raise

    def end(self, error: str = "") -> None:
        """End: run the end callbacks, once. ``error`` (``"<exception type>: <message>"``) marks the recorded row."""
        was_open, self._open = self._open, False
        if not was_open:
            return
        try:
            self._run_ends()
        finally:
            process_recorder.recorder.end(self.event_id, error, self._flags)
            self._step = _NOTHING[self._step.scope]
            self._forget()

    def __enter__(self) -> RecordFunction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end(error_text(error) if error is not None else "")

    def __del__(self) -> None:
        # As in the reference: a range that nobody can end any more ends here.
        if getattr(self, "_open", False) and not sys.is_finalizing():
            self.end()

    def is_active(self) -> bool:
        """Whether callbacks run on this range, or the recorder may record it."""
        return bool(self._step.callbacks) or self._open or process_recorder.recorder.recording

    # --- what it is

    def name(self) -> str:
        """The range's name; an operator's without its overload."""
        return self._fn if isinstance(self._fn, str) else str(self._fn.name)

    def scope(self) -> RecordScope:
        """What kind of range it is."""
        return self._step.scope

    def seq_nr(self) -> int:
        """The sequence number, -1 where there is none."""
        return self._sequence_nr

    def operator_name(self) -> OperatorName | None:
        """Of a range that was begun with a schema."""
        schema = self.operator_schema()
        return OperatorName(self.name(), str(schema.overload_name)) if schema is not None else None

    def operator_schema(self) -> Any:
        """The schema with which it was begun, or None."""
        return None if isinstance(self._fn, str) else self._fn

    def handle(self) -> int:
        """Known from the start callbacks on: the event id where the range is recorded; unique where a callback needs ids."""
        return self._handle

    def set_handle(self, handle: int) -> None:
        """Give the range a handle of the caller's choice, from 0 (none) to 2**64 - 1, before it begins.

        Raises:
            SettingError: another one.
        """
        self._handle = whole_number(handle, "handle", UINT64)

    def debug_handle(self) -> int:
        """By which a mobile model finds its source, -1 where there is none."""
        return self._debug_handle

    def set_debug_handle(self, debug_handle: int) -> None:
        """Set it, before the range begins.

        Raises:
            SettingError: no 64-bit number.
        """
        self._debug_handle = whole_number(debug_handle, "debug_handle", INT64)

    # --- what goes in and out

    def inputs(self) -> Sequence[Any]:
        """What ``before`` was given.

        Raises:
            InputsError: not in a start callback of this range.
        """
        return self._readable(self._inputs, "inputs")

    def kwinputs(self) -> Mapping[str, Any]:
        """The same by name.

        Raises:
            InputsError: not in a start callback of this range.
        """
        return self._readable(self._kwinputs, "kwinputs")

    def num_inputs(self) -> int:
        """How many inputs; of a schema, how many arguments it declares."""
        schema = self.operator_schema()
        return len(schema.arguments) if schema is not None else self._num_inputs

    def outputs(self) -> Sequence[Any]:
        """What ``set_outputs`` was given."""
        return self._outputs

    def set_outputs(self, outputs: Sequence[Any]) -> None:
        """Give end callbacks the outputs."""
        self._outputs = outputs

    def num_outputs(self) -> int:
        """How many outputs; of a schema, how many it declares."""
        schema = self.operator_schema()
        return len(schema.returns) if schema is not None else len(self._outputs)

    def needs_inputs(self) -> bool:
        """Whether somebody reads the inputs; else don't collect them."""
        recorder = process_recorder.recorder
        return self._step.needs_inputs or (recorder.recording and bool(recorder.extras & SHAPES))

    def needs_outputs(self) -> bool:
        """Whether somebody reads the outputs."""
        return self._step.needs_outputs

    # --- threads and nodes

    def thread_id(self) -> int:
        """RecordFunction's logical id of the thread in which the start callbacks ran."""
        return self._step.thread_id

    def forward_thread_id(self) -> int:
        """Of a backward range, the logical id of the thread that ran its forward operator; else 0."""
        return self._forward_thread_id

    def set_forward_thread_id(self, thread_id: int) -> None:
        """Set it, before the range begins.

        Raises:
            SettingError: no logical thread id, which has 32 bits.
        """
        self._forward_thread_id = whole_number(thread_id, "forward_thread_id", UINT32)

    @staticmethod
    def current_thread_id() -> int:
        """RecordFunction's logical id of the calling thread; never given to another thread."""
        return process_recorder.recorder.current_thread_id()

    @staticmethod
    def get_default_node_id() -> int:
        """The node's number in distributed profiling, -1 where it has none."""
        return process_recorder.recorder.default_node_id()

    @staticmethod
    def set_default_node_id(node_id: int) -> None:
        """Number this node.

        Raises:
            SettingError: no 64-bit number.
        """
        process_recorder.recorder.set_default_node_id(whole_number(node_id, "node_id", INT64))

    # --- kinds of ranges

    def is_async(self) -> bool:
        """Whether it ends elsewhere, in another thread or when a future completes."""
        return bool(self._flags & ASYNC)

    def _set_async(self) -> None:
        self._flags |= ASYNC

    def is_static_runtime_out_variant(self) -> bool:
        """Whether static runtime ran the variant that writes into its output."""
        return bool(self._flags & OUT_VARIANT)

    def _set_static_runtime_out_variant(self) -> None:
        if self.is_active():
            self._flags |= OUT_VARIANT

    def is_nccl_meta(self) -> bool:
        """Whether it carries the metadata of a collective."""
        return bool(self._flags & NCCL_META)

    # --- inside

    def _begin_row(self, inputs: Sequence[Any]) -> None:
        recorder = process_recorder.recorder
        wants_shapes = inputs and recorder.recording and recorder.extras & SHAPES
        shapes, dtypes = input_texts(inputs) if wants_shapes else ("", "")
        self.event_id = recorder.begin(
            self.name(),
            self._step.scope,
            SOURCE,
            "",
            self._flags,
            sequence_nr=self._sequence_nr,
            forward_thread_id=self._forward_thread_id,
            handle=self._handle,
            debug_handle=self._debug_handle,
            shapes=shapes,
            dtypes=dtypes,
        )
        if not self._handle:
            self._handle = self.event_id or (next(_handles) if self._step.needs_ids else 0)

    def _run_starts(self, inputs: Sequence[Any], kwinputs: Mapping[str, Any]) -> None:
        self._inputs, self._kwinputs = inputs, kwinputs
        state = thread_locals.current()
        outer, state.in_callback = state.in_callback, True
        try:
            for pair in self._step.callbacks:
                # A callback that is interrupted has not started: it gets no end.
                self._contexts.append(_run(pair, pair.start, self))
        finally:
            state.in_callback = outer
            self._inputs = self._kwinputs = None

    def _run_ends(self) -> None:
        interrupt: BaseException | None = None
        state = thread_locals.current()
        outer, state.in_callback = state.in_callback, True
        try:
            for pair, context in zip(self._step.callbacks, self._contexts, strict=False):
                try:
                    _run(pair, pair.end, self, context)
                except BaseException as error:  # the others started, so they end
                    interrupt = interrupt or error
        finally:
            state.in_callback = outer
        if interrupt is not None:
            raise interrupt

    def _forget(self) -> None:
        """Nothing useful is left, and nothing of the program's is held."""
        self._fn = ""
        self._inputs = self._kwinputs = None
        self._outputs, self._contexts = (), []
        self._sequence_nr, self._handle, self._num_inputs = -1, 0, 0

    def _readable(self, values: T | None, what: str) -> T:
        if values is None:
            raise InputsError(
                f"{what}() was called outside the start callback; keep what you need in the observer context instead"
            )
        return values


def _check(fn: Any, inputs: Sequence[Any], sequence_nr: int) -> None:
    if not isinstance(fn, str) and not hasattr(fn, "name"):
        raise TypeError(f"a range begins with its name or an operator's schema, not {type(fn).__name__}; pass a str")
    if not hasattr(inputs, "__len__"):
        raise TypeError(f"inputs={inputs!r} is no sequence; pass a tuple or a list")
    if sequence_nr != -1:
        whole_number(sequence_nr, "sequence_nr", INT64)


def observe_range(name: str, args: str | None, flags: int) -> RangeHandle:
    """A ``record_function`` begins: what it was given is its only input. See Recorder.set_range_observer."""
    step = get_step_callbacks(RecordScope.USER_SCOPE)
    if not step.callbacks:
        leave_next_unobserved()
        return _record_range(name, flags)
    range_ = RecordFunction(step)
    range_._flags = flags
    range_.before(name, (args,) if args is not None and range_.needs_inputs() else ())
    return range_


def _record_range(name: str, flags: int) -> RangeHandle:
    """No callback wants this one."""
    if not callbacks.global_entries():
        callbacks.watch_ranges()  # whoever wanted ranges may be gone, with its thread
    recorder = process_recorder.recorder
    event_id = recorder.begin(name, RecordScope.USER_SCOPE, SOURCE, "", flags)
    return RecordedRange(recorder, event_id) if event_id else NOT_RECORDED


def _run(pair: StartEndPair, function: Callable[..., Any] | None, *arguments: Any) -> Any:
    if function is None or callbacks.has_failed(pair.handle):
        return None
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:  # a callback can't end the program
        if raised_by_signal_handler(error):
            raise
        callbacks.failed(pair.handle, error)
        return None
