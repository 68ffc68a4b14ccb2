"""Which module calls of a thread are a training step's, as they begin.

    [fwd]─[bwd]─[Optimizer.step#]──[val]─[val]──[teacher]─[fwd]─[bwd]─[Optimizer.step#]
                 a step has ended   evaluation   a part of the next step

What isn't training is flagged ``EVALUATION``; the drain makes training steps of the rest
(``native/drain/training_steps.hpp``). A thread trains once it calls a module in training mode, with
gradients, in a process that has made an optimizer; or once an optimizer has stepped in it. It
doesn't any more after 1024 calls of modules without a step, unless they accumulate gradients: then
all of them are micro-batches of one step.

A call evaluates where gradients are off or the module is in eval mode. But a training step calls
modules so, too: a teacher, a frozen encoder, a generator whose samples are judged. Evaluation is
told from these by what nobody does in a step: to put a module that is trained into eval mode, or to
call the first one again with gradients off, before anything is trained. The next time, such a
module is known from its first call on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from otel_recfn.pytorch import details
from otel_recfn.support.foreign import WeakIdentityMap

COST_SHARE = 10
"""The time between two looks for optimizers, in times of what the first one took."""
MAX_CALLS = 1024
"""The outermost calls of modules after which a thread that trained doesn't train any more,
unless an optimizer steps, or they accumulate gradients.
"""


class ThreadTraining:
    """The outermost module calls and optimizers' steps of a thread."""

    def __init__(self) -> None:
        self.evaluates = True
        """Whether what is called now is no part of training."""
        self._trains = False
        """Whether a module was called in training mode since the last step: later calls belong
        to the next step.
        """
        self._has_stepped = self._has_stopped = False
        """Whether an optimizer has stepped in the thread; and whether too many calls came since."""
        self._calls = 0
        """The number of calls since the first one of the next step, or since gradients were found
        to be accumulated.
        """
        self._steps_before = 0
        """The number of steps of any thread's optimizers at the first call of the next step."""
        self._first = ""
        """The first module that was called with gradients off since the last step."""
        self._trained: WeakIdentityMap[bool] = WeakIdentityMap()
        """The modules with which it began a step, in training mode."""
        self._called_again: WeakIdentityMap[bool] = WeakIdentityMap()
        """The modules that were called again with gradients off, before anything was trained."""

    def begin_call(self, module: Any, name: str) -> None:
        """Note a call of a module that no other module makes. ``name`` is unique to the module."""
        if self._trains:
            self._calls += 1
            if self._calls >= MAX_CALLS and _has_parameters(module):
                self._end_long_step(module)
            return
        in_eval_mode = not getattr(module, "training", True)
        if not sys.modules["torch"].is_grad_enabled():
            if not self.evaluates:
                is_trained = in_eval_mode and bool(self._trained.get(module))
                if name == self._first:
                    self._called_again.set(module, True)
                is_known = bool(self._called_again.get(module))
                self.evaluates = is_trained or is_known or not len(self._trained)
                self._first = self._first or name
        elif in_eval_mode and self._trained.get(module):
            self.evaluates = True
        # A loss belongs to what was called before it.
        elif _has_parameters(module) and self._may_train():
            self._trains, self.evaluates, self._calls = True, False, 0
            self._steps_before = optimizers.steps
            if not in_eval_mode and not self._trained.get(module):
                self._trained.set(module, True)

    def end_step(self) -> None:
        """Note that an optimizer has stepped."""
        if self.evaluates:  # nothing was called in training mode: this program trains in eval mode
            self._trained = WeakIdentityMap()
        self._trains, self.evaluates, self._first = False, False, ""
        self._has_stepped, self._has_stopped = True, False
        optimizers.steps += 1

    def _end_long_step(self, module: Any) -> None:
        """End a step of many calls, unless they accumulate gradients.

        Where an optimizer steps in another thread, gradients say nothing of how many steps the
        calls were.
        """
        if _has_gradients(module) and optimizers.steps == self._steps_before:
            self._calls = 0
        else:
            self._trains, self._has_stopped, self.evaluates = False, True, True

    def _may_train(self) -> bool:
        return not self._has_stopped and (self._has_stepped or optimizers.exist())


def trains_now(module: Any) -> bool:
    """Whether a call of it takes gradients, and is no evaluation."""
    return bool(sys.modules["torch"].is_grad_enabled()) and bool(getattr(module, "training", True))


class Optimizers:
    """The optimizers that the process has made.

    PyTorch marks the ``step`` of an optimizer's class when it makes the first one.

    So the first iteration is known as a training step from its first call on, before any optimizer
    has stepped.
    """

    def __init__(self) -> None:
        self._exist, self._next_check_ns = False, 0
        self.steps = 0
        """The steps in all threads. Some of those at one time may be counted as one."""

    def exist(self) -> bool:
        """Whether there was one, as far as is known."""
        # A look takes some 20 us, a call of a small module as long: where no optimizer comes, looks
        # take a tenth of the time.
        if not self._exist and (began_ns := time.perf_counter_ns()) >= self._next_check_ns:
            self._exist = _has_made_an_optimizer()
            now_ns = time.perf_counter_ns()
            self._next_check_ns = now_ns + COST_SHARE * (now_ns - began_ns)
        return self._exist


optimizers = Optimizers()
"""The process's."""


def _has_made_an_optimizer() -> bool:
    if details.find("hooked_step") is None:
        return False
    optimizer, _ = details.owner_and_name("hooked_step")
    return any(getattr(kind.step, "hooked", False) for kind in _kinds_of(optimizer))


def _kinds_of(kind: Any) -> Iterator[Any]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _kinds_of(inner)


def _has_gradients(module: Any) -> bool:
    try:
        return any(one.grad is not None for one in module.parameters())
    except Exception:  # a parameters() of the user's own
        return False


def _has_parameters(module: Any) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:  # a parameters() of the user's own
        return True
