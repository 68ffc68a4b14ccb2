"""``RecordFunction``: one range that callbacks and the recorder see (source:
``at::RecordFunction``).

    RecordFunction(scope)   picks the callbacks; a range that is not active costs no more
    before(name, inputs)    _native.begin, then start callbacks in their order; they may read inputs
    end()                   end callbacks in the same order, then _native.end; once

PyTorch's own observers (``range_in_torch.py``) see it after _native.begin and before _native.end.

The recorder's row encloses the callbacks, so that they know its event id. Handles count from 2**39:
PyTorch's are small numbers, and event ids, which are the handles of other Python ranges, are 2**40
and more. From the thread 4,096 on such ranges have handles that count from 2**52, so that all are
below 2**53: as doubles they are exact.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from otel_recfn import _native
from otel_recfn.callbacks import registry
from otel_recfn.callbacks.callback import StepCallbacks
from otel_recfn.callbacks.input_texts import input_texts
from otel_recfn.callbacks.range_in_torch import (
    EndElsewhere,
    TorchObservers,
    begin_for_others,
    do_nothing,
)
from otel_recfn.callbacks.registry import (
    get_step_callbacks,
    leave_next_unobserved,
    run_ends,
    run_starts,
)
from otel_recfn.callbacks.torch_callbacks import OperatorName
from otel_recfn.errors import InputsError
from otel_recfn.model.events import (
    INT64,
    UINT32,
    UINT64,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    whole_number,
)
from otel_recfn.pytorch.thread_ids import follow_torch
from otel_recfn.recording.ranges import record_range
from otel_recfn.recording.recorder import recorder
from otel_recfn.support.exceptions import failure

PARAM_COMMS_CALL_NAME = "record_param_comms"
"""The name under which PyTorch announces collectives (source: ``at::kParamCommsCallName``)."""
FIRST_HANDLE = 1 << 39

# Plain ints: arithmetic on an IntFlag costs a microsecond.
ASYNC = int(EventFlag.ASYNC)
OUT_VARIANT = int(EventFlag.STATIC_RUNTIME_OUT_VARIANT)
NCCL_META = int(EventFlag.NCCL_META)
SHAPES = int(Extra.SHAPES)
SOURCE = int(EventSource.RECORD_FUNCTION)

T = TypeVar("T")

_handles = itertools.count(FIRST_HANDLE)
_NOTHING = {scope: StepCallbacks((), 0, scope) for scope in RecordScope}


class RecordFunction:
    """A range: ``with RecordFunction(scope) as range_: range_.before(name)``; or ``before`` and
    ``end`` in different places.

    Its properties are the accessors of ``at::RecordFunction``. After its end they mean nothing, and
        keep nothing alive.

    Args:
        scope: of the range; or what ``get_step_callbacks`` returned for it.
    """

    __slots__ = (
        "__weakref__",
        "_code",
        "_contexts",
        "_debug_handle",
        "_elsewhere",
        "_flags",
        "_fn",
        "_forward_thread_id",
        "_handle",
        "_inputs",
        "_kwinputs",
        "_num_inputs",
        "_open",
        "_outputs",
        "_over",
        "_sequence_nr",
        "_step",
        "event_id",
    )

    _inputs: Sequence[Any] | None
    _kwinputs: Mapping[str, Any] | None
    _outputs: Sequence[Any]
    _contexts: list[Any]
    event_id: int
    """The event id of the recorder's row; 0 if none is recorded."""

    def __init__(self, scope: RecordScope | StepCallbacks = RecordScope.FUNCTION) -> None:
        self._make(scope if isinstance(scope, StepCallbacks) else get_step_callbacks(scope))
        if self._step.needs_ids or _native.recording():
            self._handle = next(_handles)

    def _make(self, step: StepCallbacks) -> None:
        self._step = step
        self._open = self._over = False
        self.event_id = self._flags = self._forward_thread_id = 0
        self._debug_handle = -1
        self._elsewhere: EndElsewhere | None = None
        self._code = ""
        self._forget()

    # --- the range

    def before(
        self,
        fn: Any,
        inputs: Sequence[Any] = (),
        kwinputs: Mapping[str, Any] | None = None,
        sequence_nr: int = -1,
    ) -> None:
        """Begin the range and run the start callbacks, unless it is inactive or has ended.

        A range that has begun gets a new name and new inputs, and its start callbacks run again; it
        keeps its row.

        Args:
            fn: the range's name; or an operator's schema, with ``name``, ``overload_name``,
                ``arguments`` and ``returns``.
            inputs: readable for callbacks while they start.
            kwinputs: the same, by name.
            sequence_nr: of the forward operator, which its backward node has too.
        """
        _check(fn, inputs, sequence_nr)
        if self._over or not self.is_active():
            return
        self._fn = fn
        self._sequence_nr = sequence_nr
        self._num_inputs = len(inputs)
        if self.name() == PARAM_COMMS_CALL_NAME:
            self._flags |= NCCL_META
        begun, self._open, self._contexts = self._open, True, []
        try:
            if not begun:
                self._begin_row(inputs)
                if TorchObservers.present and self._elsewhere is None:
                    self._elsewhere = begin_for_others(self.name())
            self._inputs = inputs
            self._kwinputs = kwinputs or {}
            run_starts(self._step.callbacks, self, self._contexts)
            self._inputs = self._kwinputs = None
        except BaseException as interrupt:  # the program won't call end()
            self._inputs = self._kwinputs = None
            self.end(*failure(interrupt))
            raise

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Run the end callbacks and end the range, once.

        ``error`` (``"<exception type>: <message>"``) marks the row.
        """
        was_open, self._open = self._open, False
        if not was_open:
            return
        self._over = True
        flags = self._flags  # the row says itself where it ended
        if self._step.callbacks and _native.current_thread_id() != self._step.thread_id:
            self._flags |= ASYNC
        try:
            run_ends(self._step.callbacks, self, self._contexts)
        finally:
            if self._elsewhere is not None:
                end_elsewhere, self._elsewhere = self._elsewhere, do_nothing
                end_elsewhere()
            _native.end(self.event_id, error, flags, stacktrace)
            self._step = _NOTHING[self._step.scope]
            self._forget()

    def __enter__(self) -> RecordFunction:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(*failure(error))

    def __del__(self) -> None:
        # As in PyTorch, a range that nobody holds any more ends.
        if getattr(self, "_open", False) and not sys.is_finalizing():
            self.end()

    def is_active(self) -> bool:
        """Whether callbacks run on this range, or the recorder may record it."""
        if self._over:  # while its end callbacks run it still has them, as in PyTorch
            return bool(self._step.callbacks)
        return (
            bool(self._step.callbacks)
            or self._open
            or _native.recording()
            or TorchObservers.present
        )

    def needs_inputs(self) -> bool:
        """Whether inputs are read; if not, don't collect them."""
        wants_shapes = _native.recording() and bool(recorder.extras & SHAPES)
        return self._step.needs_inputs or wants_shapes

    def needs_outputs(self) -> bool:
        """Whether outputs are read."""
        return self._step.needs_outputs

    # --- what it is

    def name(self) -> str:
        """The range's name; an operator's without its overload."""
        return self._fn if isinstance(self._fn, str) else str(self._fn.name)

    def scope(self) -> RecordScope:
        """The kind of range."""
        return self._step.scope

    def seq_nr(self) -> int:
        """The sequence number, -1 if there is none."""
        return self._sequence_nr

    def operator_name(self) -> OperatorName | None:
        """The operator's name, if the range was begun with a schema; else None."""
        schema = self.operator_schema()
        return OperatorName(self.name(), str(schema.overload_name)) if schema is not None else None

    def operator_schema(self) -> Any:
        """The schema with which the range was begun, or None."""
        return None if isinstance(self._fn, str) else self._fn

    def handle(self) -> int:
        """The handle, known as soon as the range is made, and unique if it may be recorded or a
        callback needs ids; else 0.
        """
        return self._handle

    def set_handle(self, handle: int) -> None:
        """Give the range a handle of the caller's choice, from 0 (none) to 2**64 - 1, before it
        begins.
        """
        self._handle = whole_number(handle, "handle", UINT64)

    def debug_handle(self) -> int:
        """The number by which a mobile model finds its source, -1 if there is none."""
        return self._debug_handle

    def set_debug_handle(self, debug_handle: int) -> None:
        """Set the debug handle, a 64-bit number, before the range begins."""
        self._debug_handle = whole_number(debug_handle, "debug_handle", INT64)

    # --- what goes in and out

    def inputs(self) -> Sequence[Any]:
        """The inputs that ``before`` was given, readable in a start callback of this range.

        Raises:
            InputsError: it is called anywhere else.
        """
        return _readable(self._inputs, "inputs")

    def kwinputs(self) -> Mapping[str, Any]:
        """The inputs by keyword, readable in a start callback of this range.

        Raises:
            InputsError: it is called anywhere else.
        """
        return _readable(self._kwinputs, "kwinputs")

    def num_inputs(self) -> int:
        """The number of inputs; with a schema, of arguments that it declares."""
        schema = self.operator_schema()
        return len(schema.arguments) if schema is not None else self._num_inputs

    def outputs(self) -> Sequence[Any]:
        """The outputs that ``set_outputs`` was given."""
        return self._outputs

    def set_outputs(self, outputs: Sequence[Any]) -> None:
        """Give end callbacks the outputs: the sequence's items now."""
        self._outputs = list(outputs)

    def num_outputs(self) -> int:
        """The number of outputs; with a schema, of those that it declares."""
        schema = self.operator_schema()
        return len(schema.returns) if schema is not None else len(self._outputs)

    # --- threads and nodes

    def thread_id(self) -> int:
        """RecordFunction's logical id of the thread in which the start callbacks ran."""
        return self._step.thread_id

    def forward_thread_id(self) -> int:
        """The logical id of the thread that ran a backward range's forward operator; else 0."""
        return self._forward_thread_id

    def set_forward_thread_id(self, thread_id: int) -> None:
        """Set the logical id of the forward thread, a 32-bit number, before the range begins."""
        self._forward_thread_id = whole_number(thread_id, "forward_thread_id", UINT32)

    @staticmethod
    def current_thread_id() -> int:
        """The logical id of the calling thread, as long as it lives; never given to another one."""
        follow_torch()
        return _native.current_thread_id()

    @staticmethod
    def get_default_node_id() -> int:
        """The process's number in distributed profiling, -1 if it has none."""
        return _native.default_node_id()

    @staticmethod
    def set_default_node_id(node_id: int) -> None:
        """Set the node id of the process, a 64-bit number."""
        _native.set_default_node_id(whole_number(node_id, "node_id", INT64))

    # --- kinds of ranges

    def is_async(self) -> bool:
        """Whether the range ends in another thread, or with a future; certain in end callbacks."""
        return bool(self._flags & ASYNC)

    def is_static_runtime_out_variant(self) -> bool:
        """Whether static runtime ran the variant that writes into its output."""
        return bool(self._flags & OUT_VARIANT)

    def is_nccl_meta(self) -> bool:
        """Whether the range carries the metadata of a collective."""
        return bool(self._flags & NCCL_META)

    def _set_async(self) -> None:
        self._flags |= ASYNC

    def _set_static_runtime_out_variant(self) -> None:
        if self.is_active():
            self._flags |= OUT_VARIANT

    # --- inside

    def _forget(self) -> None:
        """Forget what the range was, so that it keeps no object of the program alive."""
        self._fn = ""
        self._inputs = self._kwinputs = None
        self._outputs, self._contexts = (), []
        self._sequence_nr = -1
        self._handle = 0
        self._num_inputs = 0

    def _hide_from_torch(self) -> None:
        """Hide the range from PyTorch's observers, which see by themselves what it stands for."""
        self._elsewhere = do_nothing

    def _begin_row(self, inputs: Sequence[Any]) -> None:
        wants_shapes = inputs and _native.recording() and recorder.extras & SHAPES
        shapes, dtypes = input_texts(inputs) if wants_shapes else ("", "")
        self.event_id = _native.begin(
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
            code=self._code,
        )


class TracedRange(RecordFunction):
    """The stand-in for a RecordFunction in ``torch.compile``: it is inactive, as compiled code
    can't run callbacks.
    """

    def __init__(self, scope: RecordScope | StepCallbacks = RecordScope.FUNCTION) -> None:
        self._make(scope if isinstance(scope, StepCallbacks) else StepCallbacks((), 0, scope))

    def before(
        self,
        fn: Any,
        inputs: Sequence[Any] = (),
        kwinputs: Mapping[str, Any] | None = None,
        sequence_nr: int = -1,
    ) -> None:
        """Begin nothing, since nobody sees it."""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """End nothing."""

    def __exit__(self, *_error: object) -> None:
        pass

    def is_active(self) -> bool:
        """Whether a callback or the recorder sees the range."""
        return False

    needs_inputs = needs_outputs = is_active


def _readable(values: T | None, what: str) -> T:
    if values is None:
        raise InputsError(
            f"{what}() was called outside the start callback; keep what you need in the observer"
            " context instead"
        )
    return values


def _check(fn: Any, inputs: Sequence[Any], sequence_nr: int) -> None:
    if not isinstance(fn, str) and not hasattr(fn, "name"):
        raise TypeError(
            f"a range begins with its name or an operator's schema, not {type(fn).__name__}; pass"
            " a str"
        )
    if not hasattr(inputs, "__len__"):
        raise TypeError(f"inputs={inputs!r} is no sequence; pass a tuple or a list")
    if sequence_nr != -1:
        whole_number(sequence_nr, "sequence_nr", INT64)


# --- ranges of record_function


def observe_range(name: str, args: str | None, flags: int, code: str = "") -> Any:
    """Begin a range that a callback may select.

    ``args`` is its only input (``_native.set_range_observer``).
    """
    step = get_step_callbacks(RecordScope.USER_SCOPE)
    if not step.callbacks and not TorchObservers.present:
        leave_next_unobserved()
        if not registry.global_entries():
            registry.watch_ranges()  # the thread whose callback selected ranges may have ended
        return record_range(name, flags, code)
    range_ = RecordFunction(step)
    range_._flags, range_._code = flags, code
    range_.before(name, (args,) if args is not None and range_.needs_inputs() else ())
    return range_


registry.observe_ranges_with(observe_range)
