"""Has what is current read where a backward pass begins, for the threads in which autograd runs it.

No operator comes before the pass that would have it read. Python begins each pass at one object of PyTorch's, the engine; ours
is of a subclass of its class.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.recording.recorder import Recorder

log = logging.getLogger("otel_recfn")

PYTORCHS = "torch._C"
"""The module of the engine's class."""


class BackwardPasses:
    """Tells the recorder of each pass that begins, while ``watch`` was called last and not ``leave``.

    Args:
        recorder: reads what is current.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._theirs: Any = None
        self._ours: Any = None

    def watch(self) -> None:
        """Put our engine in PyTorch's place. torch has been imported."""
        theirs = details.find("backward")
        if type(theirs).__module__ != PYTORCHS:  # none, ours, or one of the program's, which is no other object's to stand for
            return
        try:
            self._ours, self._theirs = _engine_that_tells(theirs, self._recorder), theirs
        except TypeError:  # a class that can't be derived from, or is made otherwise
            log.debug("backward passes are not watched", exc_info=True)
            return
        _owner()._execution_engine = self._ours

    def leave(self) -> None:
        """Put PyTorch's engine back, unless somebody has replaced ours."""
        if self._ours is not None and _owner()._execution_engine is self._ours:
            _owner()._execution_engine = self._theirs


def _owner() -> Any:
    return sys.modules["torch.autograd.variable"].Variable


def _engine_that_tells(theirs: Any, recorder: Recorder) -> Any:
    """PyTorch's engine, whose method is looked up by a function in C: stacks and profilers see no frame of ours."""
    engine = type(theirs)
    members = {"run_backward": property(recorder.before_launch), "launches": theirs.run_backward}
    return type(engine.__name__, (engine,), members)()
