"""Ranges of nn.Module calls, and of GradScaler's steps.

Optimizer steps have ranges of PyTorch's own.

PyTorch's function for calls of modules is watched, ``Module.__call__``: a call's range ends when it
is left, in whatever way. Global hooks on modules would not do: PyTorch runs them before the
module's own forward hooks, so what these call would lie outside of the call, torch.compile compiles
them and warns of them, and a call with hooks costs the program more. That an optimizer has stepped
is seen by PyTorch's public hook: validation after it is told from training.

A GradScaler skips the optimizer's step where gradients are infinite, and nothing of PyTorch's says
so. So its own step is watched in the same way, and has a range whose name is like those of
optimizers: an iteration ends with it whether or not they stepped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import FunctionType
from typing import Any, NamedTuple

from otel_recfn import _native
from otel_recfn.model.events import SCALED_STEP, EventFlag, EventSource, RecordScope
from otel_recfn.pytorch import details
from otel_recfn.pytorch.called_objects import InstanceNames, ModulePaths
from otel_recfn.pytorch.generation import (
    DECODE,
    NO_INPUTS,
    Chain,
    Chains,
    Inputs,
    input_reader,
    shape_attributes,
)
from otel_recfn.pytorch.training import ThreadTraining, trains_now
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.code_names import code_text
from otel_recfn.support.exceptions import failure
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.interruptions import raised_by_signal_handler
from otel_recfn.support.logs import log

SCOPE = int(RecordScope.USER_SCOPE)
SOURCE = int(EventSource.MODULE)
EVALUATION = int(EventFlag.EVALUATION)
NO_GRAPH_TASK = -1
"""PyTorch's number for no backward pass."""


class _Outermost:
    """The outermost module that is being called in a task (a greenlet, say), and in what it
    launches; None after the call.

    Of a module that a backward pass calls again, as a checkpoint does, the one that called it
    first.
    """

    __slots__ = ("module",)

    def __init__(self, module: object) -> None:
        self.module: object = module


_outermost: ContextVar[_Outermost | None] = ContextVar("otel_recfn_outermost", default=None)
# A call that the parent is in is none of the child's.
around_forks(Order.THREAD_STATE, in_child=lambda: _outermost.set(None))


class _Call(NamedTuple):
    """A call of a module that is open in this thread."""

    event_id: int
    outermost: _Outermost | None = None
    """The outermost call itself; this and the fields below are of calls that no other module
    makes.
    """
    chain: Chain | None = None
    """The calls that it may continue."""
    decode_id: int = 0
    """The event id of the range around it, if it decodes."""
    attributes: str = ""
    """The attributes of its end."""


class _Thread:
    """The state of a thread by which its calls of modules know of each other."""

    __slots__ = ("chains", "training")

    def __init__(self, growing: WeakIdentityMap[bool]) -> None:
        self.chains = Chains(growing)
        self.training = ThreadTraining()


class _Threads(threading.local):
    """The state of each thread.

    Reading it is slow, so a call reads it once. All share ``growing``, as ``Chains`` has it.
    """

    def __init__(self, growing: WeakIdentityMap[bool]) -> None:
        self.own = _Thread(growing)


_texts: WeakIdentityMap[str] = WeakIdentityMap()
"""The results of ``_find_code``, by function."""


def _find_code(module: Any) -> str:
    """``file(line): module.Class.forward`` of a module's ``forward``; empty if it is no Python
    function.
    """
    function = vars(module).get("forward") or getattr(type(module), "forward", None)
    function = getattr(function, "__func__", function)
    text = _texts.get(function)
    if text is None:
        text = code_text(function)
        with suppress(TypeError):  # some objects can't be referred to weakly, as None
            _texts.set(function, text)
    return text


def _no_graph_task() -> int:
    return NO_GRAPH_TASK


class ModuleRanges(Source):
    """A source of a range for each module call.

    Args:
        names: of the modules; of its own by default.
    """

    name = "modules"
    announces: EventSource | None = EventSource.MODULE
    needs: str | None = "torch"

    def __init__(self, names: InstanceNames | None = None) -> None:
        self._names = names or InstanceNames()
        self._paths = ModulePaths()
        self._call_inputs: Callable[[], Inputs] = lambda: NO_INPUTS
        self._graph_task: Callable[[], int] = _no_graph_task
        self._removals: list[Callable[[], object]] = []
        self._failed = False
        self._threads = _Threads(WeakIdentityMap())
        self._lock = ForkSafeLock()

    def enable(self, wanted: Wanted) -> None:
        """Set the hooks, unless they are set or one has failed."""
        with self._lock:
            if not self._removals and not self._failed:
                # What threads did under an earlier recording says nothing of what they do in this
                # one.
                self._threads = _Threads(WeakIdentityMap())
                self._call_inputs = input_reader()
                self._graph_task = details.find("graph_task") or _no_graph_task
                self._removals = _set_hooks(self)

    def disable(self) -> None:
        """Remove the hooks. The ranges of running calls still end."""
        with self._lock:
            removals, self._removals = self._removals, []
            for remove in removals:
                remove()

    def announces_now(self) -> bool:
        """Whether calls of modules become ranges now."""
        return bool(self._removals)

    def enter_module(self, module: object) -> _Call:
        """Begin the range of a module's call."""
        thread = self._threads.own
        outermost_call = _outermost.get()
        name = self._names.name(module)
        if outermost_call is None or outermost_call.module is None:
            return self._enter_outermost(thread, module, name)
        path = self._paths.path(outermost_call.module, module)
        flags = EVALUATION if thread.training.evaluates else 0
        return _Call(_native.begin(name, SCOPE, SOURCE, path, flags, code=_find_code(module)))

    def _enter_outermost(self, thread: _Thread, module: object, name: str) -> _Call:
        thread.training.begin_call(module, name)
        flags = EVALUATION if thread.training.evaluates else 0
        inputs = self._call_inputs()
        decode_id = 0
        chain = thread.chains.begin(module, name, inputs, trains_now)
        if chain is not None and chain.decodes:
            decode_id = _native.begin(DECODE, SCOPE, SOURCE, flags=flags, step_number=chain.tokens)
        is_backward = self._graph_task() != NO_GRAPH_TASK
        model = self._paths.outermost(module) if is_backward else None
        path = self._paths.path(model, module) if model is not None else ""
        event_id = _native.begin(name, SCOPE, SOURCE, path, flags, code=_find_code(module))
        if chain is not None and chain.tokens == 1:
            chain.first_event_id = event_id
        outermost = _Outermost(module if model is None else model)
        _native.set_context_variable(_outermost, outermost)
        return _Call(
            event_id,
            outermost,
            chain,
            decode_id=decode_id,
            attributes=shape_attributes(inputs.shapes),
        )

    def leave_module(self, call: _Call, error: BaseException | None) -> None:
        """End the range of a module's call."""
        if call.outermost is not None:
            call.outermost.module = None
        text, stacktrace = failure(error)
        _native.end(call.event_id, text, stacktrace=stacktrace, attributes=call.attributes)
        generation = call.chain.end_call() if call.chain is not None else ""
        if call.decode_id:
            _native.end(call.decode_id, text, generation=generation)

    def enter_scaled_step(self) -> int:
        """Begin the range of a GradScaler's step."""
        return _native.begin(SCALED_STEP, SCOPE, int(EventSource.RECORD_FUNCTION))

    def leave_scaled_step(self, event_id: int, error: BaseException | None) -> None:
        """End the range of a GradScaler's step, in which the optimizer may not have stepped."""
        text, stacktrace = failure(error)
        _native.end(event_id, text, stacktrace=stacktrace)
        self.leave_step()

    def leave_step(self) -> None:
        """Note that an optimizer has stepped, or that its step was skipped."""
        self._threads.own.training.end_step()

    def stop_unless_interrupted(self, error: Exception) -> None:
        """Go on without module ranges after a hook failed; what a signal handler raised goes to
        the program.
        """
        if raised_by_signal_handler(error):
            raise error
        log.exception("a module hook of otel-recfn failed; modules are not recorded any more")
        self._failed = True
        self.disable()


def _set_hooks(ranges: ModuleRanges) -> list[Callable[[], object]]:
    """Set all hooks; what this torch lacks is left out. Returns the functions that remove them."""
    if details.find("is_compiling") is None:
        return []
    return [*_watch_modules(ranges), *_watch_scaled_steps(ranges), *_set_step_hooks(ranges)]


def _watch_modules(ranges: ModuleRanges) -> list[Callable[[], object]]:
    function = details.find("module_call")
    if not isinstance(function, FunctionType):
        return []
    is_compiling = details.find("is_compiling")
    is_tracing = details.find("is_tracing") or bool

    def otel_recfn_enter(module: object) -> object:
        try:
            return (
                None
                if not _native.recording() or is_compiling() or is_tracing()
                else ranges.enter_module(module)
            )
        except Exception as error:
            ranges.stop_unless_interrupted(error)
            return None

    def otel_recfn_leave(call: Any, error: BaseException | None = None) -> None:
        try:
            ranges.leave_module(call, error)
        except Exception as failed:
            ranges.stop_unless_interrupted(failed)

    # In CPython 3.11 `super().__call__(x)` isn't seen by watchers, but what it calls is.
    inner = details.find("module_call_impl") if sys.version_info[:2] == (3, 11) else None
    functions = (function, inner) if isinstance(inner, FunctionType) else (function,)
    _native.watch_calls(functions, otel_recfn_enter, otel_recfn_leave)
    return [_native.unwatch_calls]


def _watch_scaled_steps(ranges: ModuleRanges) -> list[Callable[[], object]]:
    function = details.find("scaled_step")
    is_compiling = details.find("is_compiling")
    if not isinstance(function, FunctionType):
        return []

    def otel_recfn_enter_step(_scaler: object) -> object:
        try:
            return (
                ranges.enter_scaled_step() if _native.recording() and not is_compiling() else None
            )
        except Exception as error:
            ranges.stop_unless_interrupted(error)
            return None

    def otel_recfn_leave_step(event_id: Any, error: BaseException | None = None) -> None:
        try:
            ranges.leave_scaled_step(event_id, error)
        except Exception as failed:
            ranges.stop_unless_interrupted(failed)

    # CPython 3.11 doesn't show calls that Python code makes in the plain way, but those with
    # arguments from a tuple.
    inner = details.find("scaled_step_impl") if sys.version_info[:2] == (3, 11) else None
    functions = (function, inner) if isinstance(inner, FunctionType) else (function,)
    _native.watch_calls(functions, otel_recfn_enter_step, otel_recfn_leave_step)
    return [_native.unwatch_calls]


def _set_step_hooks(ranges: ModuleRanges) -> list[Callable[[], object]]:
    """Set a hook for steps.

    It is a plain function: torch.compile and torch.export see its first line and nothing more.
    """
    register = details.find("step_hook")
    is_compiling = details.find("is_compiling")
    if register is None:
        return []

    def otel_recfn_post_hook(_subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        try:
            ranges.leave_step()
        except Exception as error:
            ranges.stop_unless_interrupted(error)

    return [register(otel_recfn_post_hook).remove]
