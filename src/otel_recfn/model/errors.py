"""Errors of the public API: each states the fact, then the way out. And the check of numbers that columns are to hold."""

from __future__ import annotations

from operator import index
from typing import Any, SupportsIndex

INT64 = -(1 << 63), (1 << 63) - 1
UINT32 = 0, (1 << 32) - 1
UINT64 = 0, (1 << 64) - 1


class RecfnError(Exception):
    """Base of every error that otel-recfn raises."""


class SettingError(RecfnError, ValueError):
    """A setting has a value that is not allowed; the message names the setting and the allowed values."""


class CallRefused(RecfnError):
    """A signal handler started, stopped or flushed in the middle of a start, stop or flush of its thread."""


class RecorderUnavailable(RecfnError, ImportError):
    """Nothing can be recorded here: there is no native part, or this is a subinterpreter or a free-threaded CPython."""


class CacheUnsafe(RecfnError):
    """The cache can't be trusted or can't be made; the message says what is wrong and what to do."""


class DebugInfoError(RecfnError):
    """The innermost debug info is of another kind than was to be popped."""


class SchemaError(RecfnError):
    """An operator schema that can't be read; ``location`` says where it stands."""

    def __init__(self, location: Any, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location


class GeneratorError(RecfnError):
    """The generator lacks something that it needs."""


class InputsError(RecfnError):
    """Inputs were asked for outside the start callback."""


class ObserverUnavailable(RecfnError):
    """PyTorch's operators can't be observed here; the message says why, and the way out."""


class OperatorMissingError(RecfnError, LookupError):
    """A wrapper was called whose operator isn't there."""


class ProfilerError(RecfnError, RuntimeError):
    """The profiler can't do that now, or an event isn't what it should be. A RuntimeError, as PyTorch's."""


class RangeOver(RecfnError):
    """A RecordFunction of PyTorch's was read after the callback that got it had returned."""


class SamplingProbabilityError(RecfnError, ValueError):
    """A sampling probability outside 0 to 1."""


class TraceError(RecfnError, TypeError):
    """A function can't be traced."""


class TraceFileError(RecfnError, ValueError):
    """A trace file can't be read, or has nothing to show."""


class UnknownHandleError(RecfnError, ValueError):
    """A number that no ``record_function_enter`` has returned."""


def whole_number(value: SupportsIndex, name: str, bounds: tuple[int, int]) -> int:
    """``value`` as an int.

    Raises:
        SettingError: no whole number, or not within the bounds, which are allowed themselves.
    """
    low, high = bounds
    try:
        number = index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise SettingError(f"{name}={value!r} is not allowed; allowed: a whole number from {low} to {high}")
    return number
