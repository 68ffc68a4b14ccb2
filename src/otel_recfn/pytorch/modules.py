"""Ranges of nn.Module calls and of optimizer steps, by PyTorch's public global hooks.

    module(x)                                   stack of this thread
      pre hook ── begin, remember the frame ──► [ ..., call ]
      forward
      post hook ─ find the call by its frame ─► [ ... ], end

PyTorch calls the post hook also after an exception, but not after every one: KeyboardInterrupt, SystemExit and GeneratorExit
pass it by, and no exception of an optimizer's step reaches its hook. Such a call stays on the stack. It is told from a live one
by its frame, the one that called the pre hook: a frame that is no longer in the chain of callers has been left. Those calls are
ended, as errors, by the next hook in the thread.

What global hooks do to PyTorch's compilers, whoever sets them: torch.compile sees the first line of ours and nothing more (a
module compiled before is compiled once more after they are set), and ``torch.export.export(strict=True)``, no longer the
default, fails in PyTorch 2.13: that needs ``modules=False``.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from otel_recfn.model.events import EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.pytorch.module_names import InstanceNames, ModulePaths
from otel_recfn.recording.protocol import Recorder
from otel_recfn.sources.protocol import Wanted
from otel_recfn.support.error_text import error_text
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.interrupts import raised_by_signal_handler
from otel_recfn.support.weak_identity import WeakIdentityMap

log = logging.getLogger("otel_recfn")

STOPS_RECOMPUTATION = "_StopRecomputationError"
"""By which torch.utils.checkpoint leaves a forward early that it recomputes: nothing has failed."""

LEFT_UNSEEN = "BaseException: left by an exception that PyTorch does not report to hooks, such as KeyboardInterrupt"
SCOPE, SOURCE = int(RecordScope.USER_SCOPE), int(EventSource.MODULE)


class _Call:
    """A range that is open in this thread."""

    __slots__ = ("event_id", "frame", "handled", "outermost")

    def __init__(self, event_id: int, frame: FrameType, outermost: object) -> None:
        self.event_id = event_id
        self.frame = frame
        self.handled = sys.exc_info()[1]
        """The exception that was being handled at the begin: not this call's."""
        self.outermost = outermost
        """The module at the bottom of the stack; None in an optimizer's step outside every module."""


class _ThreadStack:
    """The open calls of one thread; a class so that it can be held weakly."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


class ModuleRanges:
    """A source: opens a range for each module call and each optimizer step while it is enabled and something records.

    Args:
        recorder: what begins and ends go to.
        torch_announces_optimizer: whether the observer reports PyTorch's own range of a step now, which has the same name.
    """

    name = "modules"
    announces: EventSource | None = EventSource.MODULE
    needs: str | None = "torch"

    def __init__(self, recorder: Recorder, torch_announces_optimizer: Callable[[], bool]) -> None:
        self._recorder = recorder
        self._torch_announces_optimizer = torch_announces_optimizer
        self._names, self._paths = InstanceNames(), ModulePaths()
        self._handles: list[Any] = []
        self._thread = threading.local()
        self._stacks: WeakIdentityMap[None] = WeakIdentityMap()
        self._lock = ForkSafeLock()

    def prepare(self) -> bool:
        """See Source.prepare."""
        return True

    def enable(self, wanted: Wanted) -> None:
        """Set the hooks, where they aren't set."""
        with self._lock.held:
            if not self._handles:
                self._handles = [*_set_hooks(self), _NoCompileWarning()]

    def disable(self) -> None:
        """Take the hooks away. The ranges of calls that are still running, in any thread, end now: no hook will end them."""
        with self._lock.held:
            handles, self._handles = self._handles, []
            for handle in handles:
                handle.remove()
            for stack in self._stacks.living():
                calls, stack.calls = stack.calls, []
                for call in reversed(calls):
                    self._recorder.end(call.event_id)

    def counters(self) -> dict[str, int]:
        """None."""
        return {}

    def enter_module(self, module: object, frame: FrameType) -> None:
        """A module is about to run; ``frame`` called the hook."""
        calls = self._live_calls(frame)
        outermost = calls[-1].outermost if calls else None
        if outermost is None:
            outermost = module
        path = self._paths.path(outermost, module)
        event_id = self._recorder.begin(self._names.name(module), SCOPE, SOURCE, path)
        self._push(calls, _Call(event_id, frame, outermost))

    def enter_step(self, optimizer: object, frame: FrameType) -> None:
        """An optimizer is about to step."""
        calls = self._live_calls(frame)
        if self._torch_announces_optimizer():
            return
        event_id = self._recorder.begin(f"Optimizer.step#{type(optimizer).__name__}.step", SCOPE, SOURCE)
        self._push(calls, _Call(event_id, frame, calls[-1].outermost if calls else None))

    def leave(self, frame: FrameType) -> None:
        """What ``frame`` began is over, well or by the exception that is being handled."""
        calls = self._calls()
        for position in range(len(calls) - 1, -1, -1):
            call = calls[position]
            # After an exception the hook is called by the function around the one that called the pre hook.
            if call.frame is frame or call.frame.f_back is frame:
                self._end_left_calls(calls, position + 1)
                calls.pop()
                raised = sys.exc_info()[1]
                failed = raised is not None and raised is not call.handled and type(raised).__name__ != STOPS_RECOMPUTATION
                self._recorder.end(call.event_id, error_text(raised) if failed and raised is not None else "")
                return

    def give_up_unless_interrupted(self, error: Exception) -> None:
        """A hook failed: the host goes on, without us. What a signal handler raised into it is the program's own."""
        if raised_by_signal_handler(error):
            raise error
        log.exception("a module hook of otel-recfn failed; modules and optimizers are not recorded any more")
        self.disable()

    def _calls(self) -> list[_Call]:
        stack: _ThreadStack | None = getattr(self._thread, "stack", None)
        if stack is None:
            stack = self._thread.stack = _ThreadStack()
            self._stacks.set(stack, None)
        return stack.calls

    def _live_calls(self, frame: FrameType) -> list[_Call]:
        """The thread's open calls, after those were ended whose frame was left without a hook."""
        calls = self._calls()
        while calls and not _is_below(calls[-1].frame, frame):
            self._end_left_calls(calls, len(calls) - 1)
        return calls

    def _push(self, calls: list[_Call], call: _Call) -> None:
        calls.append(call)
        if not self._handles:  # removed meanwhile, by another thread, which may not have seen this call
            calls.pop()
            self._recorder.end(call.event_id)

    def _end_left_calls(self, calls: list[_Call], position: int) -> None:
        """End the calls from ``position`` upwards, innermost first."""
        while len(calls) > position:
            self._recorder.end(calls.pop().event_id, LEFT_UNSEEN)


class _NoCompileWarning:
    """torch.compile warns at each call of a compiled module that there are global hooks: ours are meant to be there."""

    MESSAGE = "Using `torch.compile(module)` when there are global hooks on modules"

    def __init__(self) -> None:
        warnings.filterwarnings("ignore", message=re.escape(self.MESSAGE), category=UserWarning)
        self._filter = warnings.filters[0]

    def remove(self) -> None:
        if self._filter in warnings.filters:  # not where somebody reset the filters meanwhile
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


def _is_below(frame: FrameType, top: FrameType) -> bool:
    """Whether ``frame`` is among the callers of ``top``."""
    caller: FrameType | None = top
    while caller is not None:
        if caller is frame:
            return True
        caller = caller.f_back
    return False


def _set_hooks(ranges: ModuleRanges) -> list[Any]:
    """The hooks are plain functions whose first line is all that torch.compile and torch.export see of them."""
    # These came with `import torch`, which the program has done.
    modules: Any = sys.modules["torch.nn.modules.module"]
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    module_pre, step_pre = _pre_hook(ranges, ranges.enter_module), _pre_hook(ranges, ranges.enter_step)
    post = _post_hook(ranges)
    return [
        modules.register_module_forward_pre_hook(module_pre),
        modules.register_module_forward_hook(post, always_call=True),
        optimizers.register_optimizer_step_pre_hook(step_pre),
        optimizers.register_optimizer_step_post_hook(post),
    ]


def _pre_hook(ranges: ModuleRanges, enter: Callable[[object, FrameType], None]) -> Callable[..., None]:
    torch: Any = sys.modules["torch"]
    is_compiling, is_tracing = torch.compiler.is_compiling, torch.jit.is_tracing
    recorder = ranges._recorder

    def otel_recfn_pre_hook(subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        if recorder.recording and not is_tracing():
            try:
                enter(subject, sys._getframe(1))
            except Exception as error:
                ranges.give_up_unless_interrupted(error)

    return otel_recfn_pre_hook


def _post_hook(ranges: ModuleRanges) -> Callable[..., None]:
    is_compiling = sys.modules["torch"].compiler.is_compiling

    def otel_recfn_post_hook(_subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        try:
            ranges.leave(sys._getframe(1))
        except Exception as error:
            ranges.give_up_unless_interrupted(error)

    return otel_recfn_post_hook
