"""The errors that a program may want to catch. All but those of the operating system are a ``RecfnError``.

from otel_recfn.errors import SettingError
"""

from otel_recfn.model.errors import (
    CacheUnsafe,
    CallRefused,
    DebugInfoError,
    GeneratorError,
    InputsError,
    ObserverUnavailable,
    OperatorMissingError,
    ProfilerError,
    RangeOver,
    RecfnError,
    RecorderUnavailable,
    SamplingProbabilityError,
    SchemaError,
    SettingError,
    TraceError,
    UnknownHandleError,
)

__all__ = [
    "CacheUnsafe",
    "CallRefused",
    "DebugInfoError",
    "GeneratorError",
    "InputsError",
    "ObserverUnavailable",
    "OperatorMissingError",
    "ProfilerError",
    "RangeOver",
    "RecfnError",
    "RecorderUnavailable",
    "SamplingProbabilityError",
    "SchemaError",
    "SettingError",
    "TraceError",
    "UnknownHandleError",
]
