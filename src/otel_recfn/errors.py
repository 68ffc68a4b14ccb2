"""The errors that a program may want to catch. All but those of the operating system are a ``RecfnError``.

    from otel_recfn.errors import SettingError

Names are resolved on first use, as those of ``otel_recfn`` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_recfn.callbacks.callback import SamplingProbabilityError
    from otel_recfn.callbacks.debug_info import DebugInfoError
    from otel_recfn.callbacks.library import InputsError, RangeOver
    from otel_recfn.callbacks.operations import UnknownHandleError
    from otel_recfn.codegen.operators import GeneratorError, SchemaError
    from otel_recfn.legacy.config import ProfilerError
    from otel_recfn.model.errors import CallRefused, RecfnError, RecorderUnavailable, SettingError
    from otel_recfn.pytorch.private_cache import CacheUnsafe
    from otel_recfn.pytorch.unavailable import ObserverUnavailable
    from otel_recfn.tracing.trace import TraceError
    from otel_recfn.tracing.wrappers import OperatorMissingError

_HOMES = {
    "CacheUnsafe": "pytorch.private_cache",
    "CallRefused": "model.errors",
    "DebugInfoError": "callbacks.debug_info",
    "GeneratorError": "codegen.operators",
    "InputsError": "callbacks.library",
    "ObserverUnavailable": "pytorch.unavailable",
    "OperatorMissingError": "tracing.wrappers",
    "ProfilerError": "legacy.config",
    "RangeOver": "callbacks.library",
    "RecfnError": "model.errors",
    "RecorderUnavailable": "model.errors",
    "SamplingProbabilityError": "callbacks.callback",
    "SchemaError": "codegen.operators",
    "SettingError": "model.errors",
    "TraceError": "tracing.trace",
    "UnknownHandleError": "callbacks.operations",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"otel_recfn.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
