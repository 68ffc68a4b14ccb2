"""Which module calls are no part of training: a validation loop's, but not those that a training step makes for itself.

    [fwd]─[bwd]─[Optimizer.step#]──[val]─[val]──[teacher]─[fwd]─[bwd]─[Optimizer.step#]
                 a step has ended   evaluation   a part of the next step

A call evaluates where gradients are off or the module is in eval mode. But a training step calls modules so, too: a teacher, a
frozen encoder, a generator whose samples are judged. Evaluation is told from these by what nobody does in a step: to put a
module that is trained into eval mode, or to call the first one again with gradients off, before anything is trained.
"""

from __future__ import annotations

import sys
from typing import Any

from otel_recfn.support.weak_identity import WeakIdentityMap


class ThreadTraining:
    """What a thread has trained and evaluated. torch must have been imported."""

    def __init__(self) -> None:
        self.trains = False
        """It has called a module in training since an optimizer stepped: what it calls until the next step belongs to that."""
        self.evaluates = False
        """It has evaluated since then, and hasn't trained."""
        self._first = ""
        """The first module that it has called since then with gradients off."""
        self._trained: WeakIdentityMap[bool] = WeakIdentityMap()
        """Modules with which it began a step, in training mode."""

    def begin_call(self, module: Any, name: str) -> None:
        """A module is called, and not by another one. ``name``: no other module's."""
        if self.trains:
            return
        in_eval_mode = not getattr(module, "training", True)
        if not sys.modules["torch"].is_grad_enabled():
            if not self.evaluates:
                is_trained = in_eval_mode and bool(self._trained.get(module))
                self.evaluates = is_trained or name == self._first or not len(self._trained)
                self._first = self._first or name
        elif in_eval_mode and self._trained.get(module):
            self.evaluates = True
        elif _has_parameters(module):  # else it is a loss, say, which belongs to what was called before it
            self.trains, self.evaluates = True, False
            if not in_eval_mode and not self._trained.get(module):
                self._trained.set(module, True)

    def end_step(self) -> None:
        """An optimizer has stepped."""
        if self.evaluates:  # nothing was called in training mode: this program trains in eval mode
            self._trained = WeakIdentityMap()
        self.trains, self.evaluates, self._first = False, False, ""


def _has_parameters(module: Any) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:  # a parameters() of the user's own
        return True
