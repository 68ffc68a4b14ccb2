"""Ranges of nn.Module calls and of optimizer steps, by PyTorch's public global hooks.

    module(x)                                   stack of this thread
      pre hook ── begin, remember the frame ──► [ ..., call ]
      forward
      post hook ─ find the call by its frame ─► [ ... ], end

PyTorch calls the post hook also after an exception, but not after every one: KeyboardInterrupt, SystemExit and GeneratorExit
don't reach it, nor does any exception of an optimizer's step. Such a call stays on the stack. It differs from a running one by
its frame, the one that called the pre hook: a frame that is no longer among the callers has been left. The next hook in the
thread ends such calls, as errors.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType

from otel_recfn.model.events import EventSource
from otel_recfn.model.scope import RecordScope
from otel_recfn.pytorch.method_code import MethodCode
from otel_recfn.pytorch.module_hooks import Handle, set_hooks
from otel_recfn.pytorch.module_names import InstanceNames, ModulePaths
from otel_recfn.recording.protocol import Recorder
from otel_recfn.sources.protocol import Wanted
from otel_recfn.support.fork_safe_lock import ForkSafeLock
from otel_recfn.support.interrupts import raised_by_signal_handler
from otel_recfn.support.locked import locked
from otel_recfn.support.stack_trace import failure
from otel_recfn.support.weak_identity import WeakIdentityMap

log = logging.getLogger("otel_recfn")

LEFT_UNSEEN = "BaseException: left by an exception that PyTorch does not report to hooks, such as KeyboardInterrupt"
SCOPE, SOURCE = int(RecordScope.USER_SCOPE), int(EventSource.MODULE)


class _Call:
    """A range that is open in this thread."""

    __slots__ = ("event_id", "frame", "handled", "outermost")

    def __init__(self, event_id: int, frame: FrameType, outermost: object) -> None:
        self.event_id = event_id
        self.frame = frame
        self.handled = sys.exc_info()[1]
        """The exception that was already being handled at the begin, which is not this call's."""
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
        names: of the modules; of its own by default.
    """

    name = "modules"
    announces: EventSource | None = EventSource.MODULE
    needs: str | None = "torch"

    def __init__(
        self, recorder: Recorder, torch_announces_optimizer: Callable[[], bool], names: InstanceNames | None = None
    ) -> None:
        self._recorder = recorder
        self._torch_announces_optimizer = torch_announces_optimizer
        self._names, self._paths = names or InstanceNames(), ModulePaths()
        self._forward, self._step = MethodCode("forward"), MethodCode("step")
        self._handles: list[Handle] = []
        self._failed = False
        self._thread = threading.local()
        self._stacks: WeakIdentityMap[None] = WeakIdentityMap()
        self._lock = ForkSafeLock()

    def prepare(self) -> bool:
        """See Source.prepare."""
        return True

    @locked
    def enable(self, wanted: Wanted) -> None:
        """Set the hooks, where they aren't set, and unless one has failed."""
        if not self._handles and not self._failed:
            self._handles = set_hooks(self, self._recorder)

    @locked
    def disable(self) -> None:
        """Take the hooks away. The ranges of calls that are still running, in any thread, end now: no hook will end them."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        for stack in self._stacks.living():
            calls, stack.calls = stack.calls, []
            for call in reversed(calls):
                self._recorder.end(call.event_id)

    def announces_now(self) -> bool:
        """Whether calls of modules become ranges now."""
        return bool(self._handles)

    def counters(self) -> dict[str, int]:
        """It has none."""
        return {}

    def enter_module(self, module: object, frame: FrameType) -> None:
        """A module is about to run; ``frame`` called the hook."""
        calls = self._live_calls(frame)
        outermost = calls[-1].outermost if calls else None
        if outermost is None:
            outermost = module
        path = self._paths.path(outermost, module)
        event_id = self._recorder.begin(self._names.name(module), SCOPE, SOURCE, path, code=self._forward.of(module))
        self._push(calls, _Call(event_id, frame, outermost))

    def enter_step(self, optimizer: object, frame: FrameType) -> None:
        """An optimizer is about to step."""
        calls = self._live_calls(frame)
        code = self._step.of(optimizer)
        if self._torch_announces_optimizer():  # its range is open already
            self._recorder.say_code(code)
            return
        event_id = self._recorder.begin(f"Optimizer.step#{type(optimizer).__name__}.step", SCOPE, SOURCE, code=code)
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
                error, stacktrace = failure(raised if raised is not call.handled else None)
                self._recorder.end(call.event_id, error, stacktrace=stacktrace)
                return

    def give_up_unless_interrupted(self, error: Exception) -> None:
        """A hook failed: the program goes on without module ranges, but what its signal handler raised goes to the program."""
        if raised_by_signal_handler(error):
            raise error
        log.exception("a module hook of otel-recfn failed; modules and optimizers are not recorded any more")
        self._failed = True
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
        if not self._handles:  # another thread has removed the hooks meanwhile, and may not have seen this call
            calls.pop()
            self._recorder.end(call.event_id)

    def _end_left_calls(self, calls: list[_Call], position: int) -> None:
        """End the calls from ``position`` upwards, innermost first."""
        while len(calls) > position:
            self._recorder.end(calls.pop().event_id, LEFT_UNSEEN)


def _is_below(frame: FrameType, top: FrameType) -> bool:
    """Whether ``frame`` is among the callers of ``top``."""
    caller: FrameType | None = top
    while caller is not None:
        if caller is frame:
            return True
        caller = caller.f_back
    return False
