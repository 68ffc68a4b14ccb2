"""Errors of the public API. Each message states the fact, then the way out."""

from __future__ import annotations


class RecfnError(Exception):
    """Base of every error that otel-recfn raises."""


class SettingError(RecfnError, ValueError):
    """A setting has a value that is not allowed; the message names the setting and what is."""


class InterpreterError(RecfnError, ImportError):
    """Recording was asked for in a subinterpreter. An ImportError, as numpy refuses them, too."""


OUT_OF_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises: numpy forgets the MemoryError here and there, which Python turns into a SystemError."""
