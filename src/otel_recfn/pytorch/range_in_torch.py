"""A range of the program's for PyTorch's own observers.

The compiled observer makes a RecordFunction of which our own callbacks are left out, for they see the range already. Where that
library isn't loaded PyTorch's ``record_function`` is used: then nothing of ours is on PyTorch's ranges but callbacks in Python,
which are made to look away. It calls two operators, so it is not used where the program looks at the operators that it calls.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

from otel_recfn.pytorch import callbacks_library, native_range, observer
from otel_recfn.runtime.other_observers import RangeElsewhere, RangeToTell
from otel_recfn.runtime.thread_locals import RunningCallback

log = logging.getLogger("otel_recfn")


class TorchsRange:
    """A ``record_function`` of PyTorch's that was entered."""

    __slots__ = ("_range",)

    def __init__(self, range_: Any) -> None:
        self._range = range_

    def end(self, _is_async: bool) -> None:
        """See RangeElsewhere."""
        with suppress(Exception), RunningCallback():  # the interpreter ends, say: PyTorch's modules are empty
            self._range.__exit__(None, None, None)


class RangesInTorch:
    """See OtherObservers."""

    def __init__(self) -> None:
        self._left_out: object = None
        self._warned = False

    def begin(self, told: RangeToTell) -> RangeElsewhere | None:
        """See OtherObservers."""
        try:
            library = observer.loaded_library()
            if library is None:
                return _begin_by_torch(told)
            self._leave_out_callbacks(library)
            return native_range.begin(library, told)
        except Exception as error:  # the program goes on
            if not self._warned:
                self._warned = True
                log.warning("PyTorch's own profilers don't see some of the program's ranges: %s", error)
            return None

    def _leave_out_callbacks(self, library: Any) -> None:
        callbacks = callbacks_library.loaded()
        if callbacks is not self._left_out and callbacks is not None:
            native_range.leave_out(library, callbacks.starts())
            self._left_out = callbacks


def _begin_by_torch(told: RangeToTell) -> RangeElsewhere | None:
    if _is_looked_at(sys.modules["torch"]):
        return None
    first = told.inputs[0] if told.inputs else None
    with RunningCallback():
        range_ = sys.modules["torch.autograd.profiler"].record_function(told.name, first if isinstance(first, str) else None)
        range_.__enter__()
    return TorchsRange(range_)


def _is_looked_at(torch: Any) -> bool:
    """Whether a graph is traced, or a mode of PyTorch's is told of operators."""
    counts = [getattr(torch._C, name, None) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack")]
    return bool(torch.jit.is_tracing()) or any(count() for count in counts if count is not None)
