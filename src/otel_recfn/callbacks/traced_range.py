"""What ``torch.compile`` traces in place of ``RecordFunction`` (``pytorch/compiling.py`` registers it).

Compiled code can't run callbacks: the range is not active, and nobody sees it. Where PyTorch is configured to put its own
``record_function`` into graphs, this range is put there as well, and PyTorch announces it when the graph runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.sampling import StepCallbacks
from otel_recfn.model.scope import RecordScope


class TracedRange(RecordFunction):
    """A RecordFunction in compiled code."""

    def __init__(self, scope: RecordScope | StepCallbacks = RecordScope.FUNCTION) -> None:
        self._step = scope if isinstance(scope, StepCallbacks) else StepCallbacks((), 0, scope)
        self._open = False
        self._handle = self._flags = self._forward_thread_id = self._num_inputs = self.event_id = 0
        self._sequence_nr = self._debug_handle = -1
        self._fn = ""
        self._inputs = self._kwinputs = None
        self._outputs, self._contexts = (), []
        self._in_graph: Any = None

    def before(
        self, fn: Any, inputs: Sequence[Any] = (), kwinputs: Mapping[str, Any] | None = None, sequence_nr: int = -1
    ) -> None:
        """Begin in the graph."""
        if not self._open and graphs_have_ranges():
            self._open = True
            self._in_graph = enter_in_graph(fn if isinstance(fn, str) else str(fn.name))

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """End in the graph."""
        if self._open:
            self._open = False
            leave_in_graph(self._in_graph)

    def __exit__(self, *_error: object) -> None:
        self.end()

    def is_active(self) -> bool:
        """Whether somebody may see it."""
        return graphs_have_ranges()

    def needs_inputs(self) -> bool:
        """Graphs have names only."""
        return False

    def needs_outputs(self) -> bool:
        """The same."""
        return False


def graphs_have_ranges() -> bool:
    """Whether PyTorch puts ranges into graphs; not in eager code."""
    return False


def enter_in_graph(_name: str) -> Any:
    """Put the begin of a range into the graph."""
    return None


def leave_in_graph(_entered: Any) -> None:
    """Put its end there."""
