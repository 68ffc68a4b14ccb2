"""Carries OpenTelemetry's context along with what a ``torch.futures.Future`` calls back.

Whoever completes a future calls back, for a collective gloo's own thread, and PyTorch's state doesn't go there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from opentelemetry import context

from otel_recfn.pytorch import details

METHODS = ("then", "add_done_callback")


class FutureCallbacks:
    """Has callbacks run in the context in which a future was given them, while ``watch`` was called last and not ``leave``."""

    def __init__(self) -> None:
        self._active = False
        self._future: Any = None
        self._theirs: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}

    def watch(self) -> None:
        """Put our methods in the place of PyTorch's. torch has been imported."""
        self._active = True
        self._future = details.find("future")
        if self._future is None:
            return
        for name in [name for name in METHODS if name in vars(self._future) and name not in self._ours]:
            self._theirs[name] = vars(self._future)[name]
            self._ours[name] = self._carrying(getattr(self._future, name))
            setattr(self._future, name, self._ours[name])

    def leave(self) -> None:
        """Put PyTorch's methods back, or, where somebody wrapped ours, only pass calls on."""
        self._active = False
        for name in [name for name, ours in self._ours.items() if vars(self._future).get(name) is ours]:
            setattr(self._future, name, self._theirs[name])
            del self._ours[name]

    def _carrying(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def method(future: Any, *callback: Any) -> Any:
            if self._active:
                callback = tuple(_in_context(each, context.get_current()) if callable(each) else each for each in callback)
            return theirs(future, *callback)

        return method


def _in_context(callback: Callable[..., Any], current: context.Context) -> Callable[..., Any]:
    def called_back(future: Any) -> Any:
        token = context.attach(current)
        try:
            return callback(future)
        finally:
            context.detach(token)

    return called_back
