"""The errors that a program may want to catch, each with the fact and then the way out. All derive from ``RecfnError``.

from otel_recfn.errors import SettingError
"""

from __future__ import annotations


class RecfnError(Exception):
    """The base of every error that otel-recfn raises."""


class SettingError(RecfnError, ValueError):
    """A value that a setting may not have; the message names the setting and the allowed values."""


class CallRefused(RecfnError):
    """A start, stop or flush by a signal handler that interrupts another one of its thread."""


class RecorderUnavailable(RecfnError, ImportError):
    """A process that can't record: there is no native part, or this is a subinterpreter or a free-threaded CPython."""


class DebugInfoError(RecfnError):
    """Debug info to pop that is of another kind."""


class SchemaError(RecfnError):
    """An operator schema that can't be read; ``location`` is its place."""

    def __init__(self, location: object, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location


class GeneratorError(RecfnError):
    """A missing part that the generator needs, or a file in its way."""


class InputsError(RecfnError):
    """A look at inputs outside of the start callback."""


class ObserverUnavailable(RecfnError):
    """PyTorch's operators can't be observed here; the message says why, and the way out."""


class CacheUnsafe(ObserverUnavailable):
    """A cache that can't be trusted or can't be made; the message says why, and what to do."""


class OperatorMissingError(RecfnError, LookupError):
    """A call of a wrapper whose operator is missing."""


class ProfilerError(RecfnError, RuntimeError):
    """A call that the profiler can't serve now, or an event with wrong values. A RuntimeError, as PyTorch's."""


class RangeOver(RecfnError):
    """A look at a RecordFunction of PyTorch's after its callback had returned."""


class SamplingProbabilityError(SettingError):
    """A sampling probability outside 0 to 1."""


class TraceError(RecfnError, TypeError):
    """A function that can't be traced."""


class TraceFileError(RecfnError, ValueError):
    """A trace file that can't be read, or has nothing to show."""


class UnknownHandleError(RecfnError, ValueError):
    """A number that no ``record_function_enter`` has returned."""
