"""``RecordFunction``: one range that callbacks and the recorder see (source: ``at::RecordFunction``).

    RecordFunction(scope)   picks the callbacks; a range that is not active costs no more
    before(name, inputs)    recorder.begin, then start callbacks in their order; inputs are readable meanwhile
    end()                   end callbacks in the same order, then recorder.end; once

Observers that are not ours (``other_observers.py``) are told of it after recorder.begin and before recorder.end.

The recorder's row encloses the callbacks, so that they know its event id. Handles count from 2**39: PyTorch's are small
numbers, event ids, which are the handles of other Python ranges, are 2**40 and more.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from otel_recfn.model.arguments import INT64, whole_number
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.recorder import recorder
from otel_recfn.runtime.callback_runs import run_ends, run_starts
from otel_recfn.runtime.input_texts import input_texts, input_words
from otel_recfn.runtime.other_observers import NOT_TOLD, Others, RangeElsewhere, RangeToTell
from otel_recfn.runtime.range_properties import ASYNC, NCCL_META, OUT_VARIANT, RangeProperties
from otel_recfn.runtime.sampling import StepCallbacks
from otel_recfn.runtime.step_callbacks import get_step_callbacks
from otel_recfn.support.stack_trace import failure

PARAM_COMMS_CALL_NAME = "record_param_comms"
"""The name under which PyTorch announces collectives (source: ``at::kParamCommsCallName``)."""
FIRST_HANDLE = 1 << 39

SHAPES, FLOPS, SOURCE = int(Extra.SHAPES), int(Extra.FLOPS), int(EventSource.RECORD_FUNCTION)

_handles = itertools.count(FIRST_HANDLE)
_NOTHING = {scope: StepCallbacks((), 0, scope) for scope in RecordScope}


class RecordFunction(RangeProperties):
    """A range: ``with RecordFunction(scope) as range_: range_.before(name)``; or ``before`` and ``end`` in different places.

    Args:
        scope: of the range; or what ``get_step_callbacks`` returned for it.
    """

    __slots__ = ()

    def __init__(self, scope: RecordScope | StepCallbacks = RecordScope.FUNCTION) -> None:
        self._open = self._over = False
        self._step = scope if isinstance(scope, StepCallbacks) else get_step_callbacks(scope)
        self.event_id = self._flags = self._forward_thread_id = 0
        self._debug_handle = -1
        self._elsewhere: RangeElsewhere | None = None
        self._code = ""
        self._forget()
        if self._step.needs_ids or recorder.recording:
            self._handle = next_handle()

    # --- the range

    def before(
        self,
        fn: Any,
        inputs: Sequence[Any] = (),
        kwinputs: Mapping[str, Any] | None = None,
        sequence_nr: int = -1,
    ) -> None:
        """Begin: run the start callbacks. Nothing happens where the range is not active, or has ended.

        A range that has begun gets a new name and new inputs, and its start callbacks run again; it keeps its row.

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
        if self._over or not self.is_active():
            return
        self._fn, self._sequence_nr, self._num_inputs = fn, sequence_nr, len(inputs)
        if self.name() == PARAM_COMMS_CALL_NAME:
            self._flags |= NCCL_META
        begun, self._open, self._contexts = self._open, True, []
        try:
            if not begun:
                self._begin_row(inputs)
                others = Others.told
                if others is not None and self._elsewhere is None:
                    self._elsewhere = others.begin(self._to_tell(inputs)) or NOT_TOLD
            self._inputs, self._kwinputs = inputs, kwinputs or {}
            run_starts(self._step.callbacks, self, self._contexts)
            self._inputs = self._kwinputs = None
        except BaseException as interrupt:  # the program won't call end()
            self._inputs = self._kwinputs = None
            self.end(*failure(interrupt))
            raise

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """End: run the end callbacks, once. ``error`` (``"<exception type>: <message>"``) marks the recorded row."""
        was_open, self._open = self._open, False
        if not was_open:
            return
        self._over = True
        try:
            run_ends(self._step.callbacks, self, self._contexts)
        finally:
            if self._elsewhere is not None:
                self._end_elsewhere(self._elsewhere)
            recorder.end(self.event_id, error, self._flags, stacktrace)
            self._step = _NOTHING[self._step.scope]
            self._forget()

    def __enter__(self) -> RecordFunction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end(*failure(error))

    def __del__(self) -> None:
        # As in PyTorch, a range that nobody can end any more ends here.
        if getattr(self, "_open", False) and not sys.is_finalizing():
            self.end()

    def is_active(self) -> bool:
        """Whether callbacks run on this range, or the recorder may record it."""
        if self._over:
            return False
        return bool(self._step.callbacks) or self._open or recorder.recording or Others.told is not None

    def needs_inputs(self) -> bool:
        """Whether somebody reads the inputs; else don't collect them."""
        wants_shapes = recorder.recording and bool(recorder.extras & SHAPES)
        return self._step.needs_inputs or wants_shapes or Others.told is not None

    def needs_outputs(self) -> bool:
        """Whether somebody reads the outputs."""
        return self._step.needs_outputs

    # --- threads and nodes

    @staticmethod
    def current_thread_id() -> int:
        """RecordFunction's logical id of the calling thread; never given to another thread."""
        return recorder.current_thread_id()

    @staticmethod
    def get_default_node_id() -> int:
        """The node's number in distributed profiling, -1 where it has none."""
        return recorder.default_node_id()

    @staticmethod
    def set_default_node_id(node_id: int) -> None:
        """Set it.

        Raises:
            SettingError: no 64-bit number.
        """
        recorder.set_default_node_id(whole_number(node_id, "node_id", INT64))

    # --- inside

    def _set_static_runtime_out_variant(self) -> None:
        if self.is_active():
            self._flags |= OUT_VARIANT

    def _keep_from_others(self) -> None:
        """Observers that are not ours see what it stands for by themselves."""
        self._elsewhere = NOT_TOLD

    def _to_tell(self, inputs: Sequence[Any]) -> RangeToTell:
        numbers = (self._sequence_nr, self._forward_thread_id, self._debug_handle)
        return RangeToTell(self.name(), self._step.scope, inputs, *numbers, bool(self._flags & ASYNC))

    def _end_elsewhere(self, told: RangeElsewhere) -> None:
        self._elsewhere = NOT_TOLD
        told.end(bool(self._flags & ASYNC))

    def _begin_row(self, inputs: Sequence[Any]) -> None:
        wants_shapes = inputs and recorder.recording and recorder.extras & SHAPES
        wants_words = inputs and recorder.recording and recorder.extras & FLOPS
        shapes, dtypes, concrete_inputs = input_texts(inputs) if wants_shapes else ("", "", "")
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
            code=self._code,
            concrete_inputs=concrete_inputs,
            words=input_words(self.name(), inputs) if wants_words else "",
        )


def next_handle() -> int:
    """A handle that no range has had; exact as a float."""
    return next(_handles)


def _check(fn: Any, inputs: Sequence[Any], sequence_nr: int) -> None:
    if not isinstance(fn, str) and not hasattr(fn, "name"):
        raise TypeError(f"a range begins with its name or an operator's schema, not {type(fn).__name__}; pass a str")
    if not hasattr(inputs, "__len__"):
        raise TypeError(f"inputs={inputs!r} is no sequence; pass a tuple or a list")
    if sequence_nr != -1:
        whole_number(sequence_nr, "sequence_nr", INT64)
