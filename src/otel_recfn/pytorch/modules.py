"""Ranges of nn.Module calls. Optimizer steps have ranges of PyTorch's own.

PyTorch's function for calls of modules is watched, ``Module.__call__``: a call's range ends when it is left, in whatever way.
Global hooks on modules would not do: PyTorch runs them before the module's own forward hooks, so what these call would lie
outside of the call, torch.compile compiles them and warns of them, and a call with hooks costs the program more. That an
optimizer has stepped is seen by PyTorch's public hook: validation after it is told from training.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import FunctionType
from typing import Any, NamedTuple

from otel_recfn import _native
from otel_recfn.model.events import EventFlag, EventSource, RecordScope
from otel_recfn.pytorch import details
from otel_recfn.pytorch.called_objects import InstanceNames, ModulePaths
from otel_recfn.pytorch.generation import (
    DECODE,
    NO_INPUTS,
    Chain,
    Chains,
    Inputs,
    attributes_of,
    reader_of_inputs,
)
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.foreign import WeakIdentityMap
from otel_recfn.support.forks import ForkSafeLock, Order, around_forks
from otel_recfn.support.signal_handlers import raised_by_signal_handler
from otel_recfn.support.texts import code_text, failure

log = logging.getLogger("otel_recfn")

SCOPE, SOURCE, EVALUATION = (
    int(RecordScope.USER_SCOPE),
    int(EventSource.MODULE),
    int(EventFlag.EVALUATION),
)


class _Outermost:
    """The outermost module that is being called in a task (a greenlet, say), and in what it launches; None after the call."""

    __slots__ = ("module",)

    def __init__(self, module: object) -> None:
        self.module: object = module


_outermost: ContextVar[_Outermost | None] = ContextVar("otel_recfn_outermost", default=None)
around_forks(
    Order.THREAD_STATE, in_child=lambda: _outermost.set(None)
)  # a call that the parent is in is none of the child's


class _Call(NamedTuple):
    """A call of a module that is open in this thread."""

    event_id: int
    outermost: _Outermost | None = None
    """The outermost call itself; this and the fields below are of calls that no other module makes."""
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
    """The state of each thread. Reading it is slow, so a call reads it once. All share ``growing``, as ``Chains`` has it."""

    def __init__(self, growing: WeakIdentityMap[bool]) -> None:
        self.own = _Thread(growing)


_texts: WeakIdentityMap[str] = WeakIdentityMap()
"""The results of ``_code_of``, by function."""


def _code_of(module: Any) -> str:
    """``file(line): module.Class.forward`` of a module's ``forward``; empty if it is no Python function."""
    function = vars(module).get("forward") or getattr(type(module), "forward", None)
    function = getattr(function, "__func__", function)
    text = _texts.get(function)
    if text is None:
        text = code_text(function)
        with suppress(TypeError):  # some objects can't be referred to weakly, as None
            _texts.set(function, text)
    return text


class ModuleRanges(Source):
    """A source of a range for each module call.

    Args:
        names: of the modules; of its own by default.
    """

    name = "modules"
    announces: EventSource | None = EventSource.MODULE
    needs: str | None = "torch"

    def __init__(self, names: InstanceNames | None = None) -> None:
        self._names, self._paths = names or InstanceNames(), ModulePaths()
        self._inputs_of_call: Callable[[], Inputs] = lambda: NO_INPUTS
        self._removals: list[Callable[[], object]] = []
        self._failed = False
        self._threads = _Threads(WeakIdentityMap())
        self._lock = ForkSafeLock()

    def enable(self, wanted: Wanted) -> None:
        """Set the hooks, unless they are set or one has failed."""
        with self._lock:
            if not self._removals and not self._failed:
                self._inputs_of_call = reader_of_inputs()
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
        around, name = _outermost.get(), self._names.name(module)
        if around is None or around.module is None:
            return self._enter_outermost(thread, module, name)
        path, flags = (
            self._paths.path(around.module, module),
            EVALUATION if thread.training.evaluates else 0,
        )
        return _Call(_native.begin(name, SCOPE, SOURCE, path, flags, code=_code_of(module)))

    def _enter_outermost(self, thread: _Thread, module: object, name: str) -> _Call:
        if not thread.training.trains:
            thread.training.begin_call(module, name)
        flags, inputs, decode_id = (
            EVALUATION if thread.training.evaluates else 0,
            self._inputs_of_call(),
            0,
        )
        chain = thread.chains.begin(module, name, inputs, trains_now)
        if chain is not None and chain.decodes:
            decode_id = _native.begin(DECODE, SCOPE, SOURCE, flags=flags, step_number=chain.tokens)
        event_id = _native.begin(name, SCOPE, SOURCE, "", flags, code=_code_of(module))
        if chain is not None and chain.tokens == 1:
            chain.first_event_id = event_id
        _outermost.set(outermost := _Outermost(module))
        return _Call(event_id, outermost, chain, decode_id, attributes_of(inputs.shapes))

    def leave_module(self, call: _Call, error: BaseException | None) -> None:
        """End the range of a module's call."""
        if call.outermost is not None:
            call.outermost.module = None
        text, stacktrace = failure(error)
        _native.end(call.event_id, text, stacktrace=stacktrace, attributes=call.attributes)
        told = call.chain.end_call() if call.chain is not None else ""
        if call.decode_id:
            _native.end(call.decode_id, text, attributes=told)

    def leave_step(self) -> None:
        """Note that an optimizer has stepped."""
        self._threads.own.training.end_step()

    def stop_unless_interrupted(self, error: Exception) -> None:
        """Go on without module ranges after a hook failed; what a signal handler raised goes to the program."""
        if raised_by_signal_handler(error):
            raise error
        log.exception("a module hook of otel-recfn failed; modules are not recorded any more")
        self._failed = True
        self.disable()


def _set_hooks(ranges: ModuleRanges) -> list[Callable[[], object]]:
    """Set all hooks; what this torch lacks is left out. Returns the functions that remove them."""
    if details.find("is_compiling") is None:
        return []
    return [*_watch_modules(ranges), *_set_step_hooks(ranges)]


def _watch_modules(ranges: ModuleRanges) -> list[Callable[[], object]]:
    function = details.find("module_call")
    if not isinstance(function, FunctionType):
        return []
    is_compiling, is_tracing = details.find("is_compiling"), details.find("is_tracing") or bool

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


def _set_step_hooks(ranges: ModuleRanges) -> list[Callable[[], object]]:
    """Set a hook for steps. It is a plain function: torch.compile and torch.export see its first line and nothing more."""
    register, is_compiling = details.find("step_hook"), details.find("is_compiling")
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


# --- evaluation


class ThreadTraining:
    """The evaluation calls of a thread: those of a validation loop, and not those of a training step.

        [fwd]─[bwd]─[Optimizer.step#]──[val]─[val]──[teacher]─[fwd]─[bwd]─[Optimizer.step#]
                     a step has ended   evaluation   a part of the next step

    A call evaluates where gradients are off or the module is in eval mode. But a training step calls modules so, too: a
    teacher, a frozen encoder, a generator whose samples are judged. Evaluation is told from these by what nobody does in a
    step: to put a module that is trained into eval mode, or to call the first one again with gradients off, before anything is
    trained.
    """

    def __init__(self) -> None:
        self.trains = False
        """Whether a module was called in training mode since the last step: later calls belong to the next step."""
        self.evaluates = False
        """Whether it has evaluated since the last step, and hasn't trained."""
        self._first = ""
        """The first module that was called with gradients off since the last step."""
        self._trained: WeakIdentityMap[bool] = WeakIdentityMap()
        """The modules with which it began a step, in training mode."""

    def begin_call(self, module: Any, name: str) -> None:
        """Note a call of a module that no other module makes. ``name`` is unique to the module."""
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
        elif _has_parameters(
            module
        ):  # else it is a loss, say, which belongs to what was called before it
            self.trains, self.evaluates = True, False
            if not in_eval_mode and not self._trained.get(module):
                self._trained.set(module, True)

    def end_step(self) -> None:
        """Note that an optimizer has stepped."""
        if self.evaluates:  # nothing was called in training mode: this program trains in eval mode
            self._trained = WeakIdentityMap()
        self.trains, self.evaluates, self._first = False, False, ""


def trains_now(module: Any) -> bool:
    """Whether a call of it takes gradients, and is no evaluation."""
    return bool(sys.modules["torch"].is_grad_enabled()) and bool(getattr(module, "training", True))


def _has_parameters(module: Any) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:  # a parameters() of the user's own
        return True
