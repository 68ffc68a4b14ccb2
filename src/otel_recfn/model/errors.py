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


OUT_OF_MEMORY = (MemoryError, SystemError)
"""What a failed allocation raises. In places numpy doesn't set the MemoryError, and Python then raises SystemError."""


_TOLD_OTHERWISE = ((RuntimeError, "can't allocate"), (TypeError, "has already been registered"))


def tells_of_no_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python tells of one for a lock by a RuntimeError, and numpy of one for looking up what
    computes a column by a TypeError."""
    return isinstance(error, OUT_OF_MEMORY) or any(
        isinstance(error, kind) and text in str(error) for kind, text in _TOLD_OTHERWISE
    )


ATTEMPTS = 20
PAUSE_SECONDS = 0.01
"""What has to be done although an allocation failed, as the end of a capture, is tried so often, with such pauses."""
