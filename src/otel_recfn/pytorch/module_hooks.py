"""PyTorch's public global hooks on module calls and optimizer steps, as far as this PyTorch has them.

What global hooks do to PyTorch's compilers, whoever sets them: torch.compile sees the first line of ours and nothing more (a
module compiled before is compiled once more after they are set), and ``torch.export.export(strict=True)``, no longer the
default, fails in PyTorch 2.13: that needs ``modules=False``.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from otel_recfn.pytorch import details
from otel_recfn.recording.protocol import Recorder


class Hooked(Protocol):
    """Who is told of calls. ``frame``: the one that called the hook."""

    def enter_module(self, module: object, frame: FrameType) -> None:
        """A module is about to run."""

    def enter_step(self, optimizer: object, frame: FrameType) -> None:
        """An optimizer is about to step."""

    def leave(self, frame: FrameType) -> None:
        """What ``frame`` began is over."""

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
    return [*_set_module_hooks(hooked, recorder), *_set_step_hooks(hooked, recorder), NoCompileWarning()]


def _set_module_hooks(hooked: Hooked, recorder: Recorder) -> list[Handle]:
    register_pre, register = details.find("module_pre_hook"), details.find("module_hook")
    if register_pre is None or register is None:
        return []
    always = {} if details.find("module_hook_always") is None else {"always_call": True}
    return [register_pre(_pre_hook(hooked, recorder, hooked.enter_module)), register(_post_hook(hooked), **always)]


def _set_step_hooks(hooked: Hooked, recorder: Recorder) -> list[Handle]:
    register_pre, register = details.find("step_pre_hook"), details.find("step_hook")
    if register_pre is None or register is None:
        return []
    return [register_pre(_pre_hook(hooked, recorder, hooked.enter_step)), register(_post_hook(hooked))]


def _pre_hook(hooked: Hooked, recorder: Recorder, enter: Callable[[object, FrameType], None]) -> Callable[..., None]:
    """A plain function, as ``_post_hook``'s: torch.compile and torch.export see its first line and nothing more."""
    is_compiling, is_tracing = details.find("is_compiling"), details.find("is_tracing") or bool

    def otel_recfn_pre_hook(subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        if recorder.recording and not is_tracing():
            try:
                enter(subject, sys._getframe(1))
            except Exception as error:
                hooked.give_up_unless_interrupted(error)

    return otel_recfn_pre_hook


def _post_hook(hooked: Hooked) -> Callable[..., None]:
    is_compiling = details.find("is_compiling")

    def otel_recfn_post_hook(_subject: object, *_arguments: object) -> None:
        if is_compiling():
            return
        try:
            hooked.leave(sys._getframe(1))
        except Exception as error:
            hooked.give_up_unless_interrupted(error)

    return otel_recfn_post_hook


class NoCompileWarning:
    """torch.compile warns at each call of a compiled module that there are global hooks: ours are meant to be there."""

    MESSAGE = "Using `torch.compile(module)` when there are global hooks on modules"

    def __init__(self) -> None:
        warnings.filterwarnings("ignore", message=re.escape(self.MESSAGE), category=UserWarning)
        self._filter = warnings.filters[0]

    def remove(self) -> None:
        if self._filter in warnings.filters:  # not where somebody reset the filters meanwhile
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
