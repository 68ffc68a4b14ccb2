"""Errors of the public API. Each message states the fact, then the way out."""

from __future__ import annotations


class RecfnError(Exception):
    """Base of every error that otel-recfn raises."""


class SettingError(RecfnError, ValueError):
    """A setting has a value that is not allowed; the message names the setting and the allowed values."""


class CallRefused(RecfnError):
    """A signal handler started, stopped or flushed in the middle of a start, stop or flush of its thread."""


class RecorderUnavailable(RecfnError, ImportError):
    """Nothing can be recorded here: there is no native part, or this is a subinterpreter or a free-threaded CPython."""
