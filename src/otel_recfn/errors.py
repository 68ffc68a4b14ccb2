"""The errors that a program may catch: ``from otel_recfn.errors import SettingError``.

All derive from ``RecfnError``. A message says what is wrong and then what to do.
"""

from __future__ import annotations


class RecfnError(Exception):
    """The base class of all errors of otel-recfn."""


class SettingError(RecfnError, ValueError):
    """A setting or argument is unknown or has a value that isn't allowed; the message names what is
    allowed.
    """


class CallRefused(RecfnError):
    """A start, stop or flush in a signal handler that interrupted another one in its thread."""


class RecorderUnavailable(RecfnError, ImportError):
    """Recording is impossible here: the native part is missing, or this is a subinterpreter or a
    free-threaded CPython.
    """


class DebugInfoError(RecfnError):
    """The innermost debug info is of another kind than the one to pop."""


class SchemaError(RecfnError):
    """An operator schema can't be read; ``location`` says where it stands."""

    def __init__(self, location: object, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location = location


class GeneratorError(RecfnError):
    """The generator lacks a package that it needs, or would overwrite a file that isn't its own."""


class InputsError(RecfnError):
    """Inputs were read outside of the start callback."""


class ObserverUnavailable(RecfnError):
    """PyTorch's operators can't be observed here; the message says why, and what to do."""


class CacheUnsafe(ObserverUnavailable):
    """The build cache isn't safe or can't be created; the message says why, and what to do."""


class OperatorMissingError(RecfnError, LookupError):
    """A generated wrapper was called whose operator is missing."""


class ProfilerError(RecfnError, RuntimeError):
    """The legacy profiler can't do this now, or an event has wrong values.

    A RuntimeError, like PyTorch's.
    """


class RangeOver(RecfnError):
    """A RecordFunction of PyTorch's was read after its callback had returned."""


class SamplingProbabilityError(SettingError):
    """A sampling probability is not between 0 and 1."""


class TraceError(RecfnError, TypeError):
    """A function can't be traced."""


class TraceFileError(RecfnError, ValueError):
    """A trace file can't be read, or has nothing to show."""


class UnknownHandleError(RecfnError, ValueError):
    """A handle was not returned by ``record_function_enter``."""
