"""Errors of the public API. Each message states the fact, then the way out."""

from __future__ import annotations


class RecfnError(Exception):
    """Base of every error that otel-recfn raises."""


class SettingError(RecfnError, ValueError):
    """A setting has a value that is not allowed; the message names the setting and the allowed values."""


class InterpreterError(RecfnError, ImportError):
    """Recording was asked for in a subinterpreter. It is an ImportError because numpy raises that there, too."""


OUT_OF_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""
