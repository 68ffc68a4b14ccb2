"""The properties of a RecordFunction, which can be read while it is open (the accessors of ``at::RecordFunction``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from otel_recfn.model.arguments import INT64, UINT32, UINT64, whole_number
from otel_recfn.model.errors import RecfnError
from otel_recfn.model.events import EventFlag
from otel_recfn.model.scope import RecordScope
from otel_recfn.runtime.sampling import StepCallbacks

# Plain ints: arithmetic on an IntFlag costs a microsecond.
ASYNC, OUT_VARIANT, NCCL_META = int(EventFlag.ASYNC), int(EventFlag.STATIC_RUNTIME_OUT_VARIANT), int(EventFlag.NCCL_META)

T = TypeVar("T")


class OperatorName(NamedTuple):
    """The two parts of an operator's name, as its schema has them."""

    name: str
    overload_name: str


class InputsError(RecfnError):
    """Inputs were asked for outside the start callback."""


class RangeProperties:
    """The properties of a range. After its end they say nothing useful, and hold nothing of the program's alive."""

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

    _step: StepCallbacks
    _open: bool
    _over: bool
    _code: str
    _fn: Any
    _inputs: Sequence[Any] | None
    _kwinputs: Mapping[str, Any] | None
    _outputs: Sequence[Any]
    _contexts: list[Any]
    event_id: int
    """Of the recorder's row; 0 where none is recorded."""
    _flags: int
    _forward_thread_id: int
    _debug_handle: int

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
        """The operator's name, for a range that was begun with a schema; else None."""
        schema = self.operator_schema()
        return OperatorName(self.name(), str(schema.overload_name)) if schema is not None else None

    def operator_schema(self) -> Any:
        """The schema with which it was begun, or None."""
        return None if isinstance(self._fn, str) else self._fn

    def handle(self) -> int:
        """Known as soon as the range is made, and unique, if it may be recorded or a callback needs ids; else 0."""
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
        """Give end callbacks the outputs: what the sequence holds now."""
        self._outputs = list(outputs)

    def num_outputs(self) -> int:
        """How many outputs; of a schema, how many it declares."""
        schema = self.operator_schema()
        return len(schema.returns) if schema is not None else len(self._outputs)

    # --- threads

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

    # --- kinds of ranges

    def is_async(self) -> bool:
        """Whether it ends elsewhere, in another thread or when a future completes."""
        return bool(self._flags & ASYNC)

    def _set_async(self) -> None:
        self._flags |= ASYNC

    def is_static_runtime_out_variant(self) -> bool:
        """Whether static runtime ran the variant that writes into its output."""
        return bool(self._flags & OUT_VARIANT)

    def is_nccl_meta(self) -> bool:
        """Whether it carries the metadata of a collective."""
        return bool(self._flags & NCCL_META)

    # --- inside

    def _forget(self) -> None:
        """Forget what the range was, so that it keeps no object of the program alive."""
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
