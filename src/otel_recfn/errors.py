# ruff: noqa: I001 - each name is imported as itself, which hands it on
"""The errors that a program may want to catch. All but those of the operating system are a ``RecfnError``.

from otel_recfn.errors import SettingError
"""

from otel_recfn.model.errors import (
    CacheUnsafe as CacheUnsafe,
    CallRefused as CallRefused,
    DebugInfoError as DebugInfoError,
    GeneratorError as GeneratorError,
    InputsError as InputsError,
    ObserverUnavailable as ObserverUnavailable,
    OperatorMissingError as OperatorMissingError,
    ProfilerError as ProfilerError,
    RangeOver as RangeOver,
    RecfnError as RecfnError,
    RecorderUnavailable as RecorderUnavailable,
    SamplingProbabilityError as SamplingProbabilityError,
    SchemaError as SchemaError,
    SettingError as SettingError,
    TraceError as TraceError,
    TraceFileError as TraceFileError,
    UnknownHandleError as UnknownHandleError,
)
