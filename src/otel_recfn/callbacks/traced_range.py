"""What ``torch.compile`` traces in place of ``RecordFunction`` (``pytorch/compiling.py`` registers it).

Compiled code can't run callbacks: the range is not active, and nobody sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from otel_recfn.callbacks.record_function import RecordFunction
from otel_recfn.callbacks.sampling import StepCallbacks
from otel_recfn.model.events import RecordScope


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

    def before(
        self, fn: Any, inputs: Sequence[Any] = (), kwinputs: Mapping[str, Any] | None = None, sequence_nr: int = -1
    ) -> None:
        """Nobody sees it."""

    def end(self, error: str = "", stacktrace: str = "") -> None:
        """Nothing to end."""

    def __exit__(self, *_error: object) -> None:
        pass

    def is_active(self) -> bool:
        """Nobody may see it."""
        return False

    def needs_inputs(self) -> bool:
        """Nor its inputs."""
        return False

    def needs_outputs(self) -> bool:
        """Nor its outputs."""
        return False
