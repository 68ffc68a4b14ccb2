"""Where calls of modules and steps of optimizers are seen: ``Module.__call__`` itself, and PyTorch's public hooks on steps.

Global hooks on modules would not do: PyTorch runs them before the module's own forward hooks, so what these call would lie
outside of the call, torch.compile compiles them and warns of them, and a call with hooks is dearer for the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, Protocol

from otel_recfn import _native
from otel_recfn.pytorch import details
from otel_recfn.recording.recorder import Recorder


class Hooked(Protocol):
    """Who is told of calls. ``frame``: the one that called the hook."""

    def enter_module(self, module: object) -> object:
        """A module is about to run; what ``leave_module`` is given."""

    def leave_module(self, call: Any, error: BaseException | None) -> None:
        """It has run, and raised this."""

    def enter_step(self, optimizer: object, frame: FrameType) -> None:
        """An optimizer is about to step."""

    def leave_step(self, frame: FrameType) -> None:
        """The step that ``frame`` began is over."""

    def give_up_unless_interrupted(self, error: Exception) -> None:
        """One of these methods failed."""


class Handle(Protocol):
    """What was set and can be taken away."""

    def remove(self) -> None:
        """Take it away."""


def set_hooks(hooked: Hooked, recorder: Recorder) -> list[Handle]:
    """Tell of begins while the recorder records, and of every end. torch must have been imported; what it lacks is left out."""
    if details.find("is_compiling") is None:
        return []
    return [*_watch_modules(hooked, recorder), *_set_step_hooks(hooked, recorder)]


class _WatchedModules:
    """Calls of modules are told."""

    def remove(self) -> None:
        """No more."""
        _native.unwatch_calls()


def _watch_modules(hooked: Hooked, recorder: Recorder) -> list[Handle]:
    function = details.find("module_call")
    if not isinstance(function, FunctionType):
        return []
    # CPython 3.11 runs `super().__call__(x)` without a look at who watches, but not what that hands on.
    inner = details.find("module_call_impl") if sys.version_info[:2] == (3, 11) else None
    functions = (function, inner) if isinstance(inner, FunctionType) else (function,)
    _native.watch_calls(functions, _enter(hooked, recorder), _leave(hooked), details.find("frame_observer"))
    return [_WatchedModules()]


def _enter(hooked: Hooked, recorder: Recorder) -> Callable[[object], object]:
    is_compiling, is_tracing = details.find("is_compiling"), details.find("is_tracing") or bool

    def otel_recfn_enter(module: object) -> object:
        try:
            return None if not recorder.recording or is_compiling() or is_tracing() else hooked.enter_module(module)
        except Exception as error:
            hooked.give_up_unless_interrupted(error)
            return None

    return otel_recfn_enter


def _leave(hooked: Hooked) -> Callable[..., None]:
    def otel_recfn_leave(call: Any, error: BaseException | None = None) -> None:
        try:
            hooked.leave_module(call, error)
        except Exception as failed:
            hooked.give_up_unless_interrupted(failed)

    return otel_recfn_leave


def _set_step_hooks(hooked: Hooked, recorder: Recorder) -> list[Handle]:
    register_pre, register = details.find("step_pre_hook"), details.find("step_hook")
    if register_pre is None or register is None:
        return []
    return [register_pre(_pre_hook(hooked, recorder)), register(_post_hook(hooked))]


def _pre_hook(hooked: Hooked, recorder: Recorder) -> Callable[..., None]:
    """A plain function, as ``_post_hook``'s: torch.compile and torch.export see its first line and nothing more."""
    is_compiling, is_tracing = details.find("is_compiling"), details.find("is_tracing") or bool

    def otel_recfn_pre_hook(subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        if recorder.recording and not is_tracing():
            try:
                hooked.enter_step(subject, sys._getframe(1))
            except Exception as error:
                hooked.give_up_unless_interrupted(error)

    return otel_recfn_pre_hook


def _post_hook(hooked: Hooked) -> Callable[..., None]:
    is_compiling = details.find("is_compiling")

    def otel_recfn_post_hook(_subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        try:
            hooked.leave_step(sys._getframe(1))
        except Exception as error:
            hooked.give_up_unless_interrupted(error)

    return otel_recfn_post_hook
