"""The kinds of values that settings have: what is allowed, in Python and as text of an environment variable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from otel_recfn.errors import SettingError
from otel_recfn.model.events import RecordScope
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.support.texts import safe_text

if TYPE_CHECKING:
    from otel_recfn.sinks.protocol import Sink

T = TypeVar("T")
SPAN_EXPORTERS = ("otlp", "otlp-grpc", "otlp-http")
MOST_SPANS = 1_000_000_000
MOST = sys.float_info.max
DETAILS: Mapping[str, Mapping[str, Any]] = {
    "low": {
        "span_budget": 200,
        "ordinary_span_budget": 10,
        "trace_span_budget": 1000,
        "spans_per_second": 200.0,
    },
    "normal": {},
    "all": {
        "span_budget": None,
        "ordinary_span_budget": None,
        "trace_span_budget": None,
        "spans_per_second": None,
    },
}
"""The settings that each value of ``detail`` stands for, where they aren't the defaults; ``low`` is a fifth of those."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value: what is allowed, and how text is read.

    Attributes:
        allowed: these, in words.
        check: gives the value as it is kept; raises KeyError, TypeError or ValueError where it isn't allowed.
        parse: gives what ``check`` takes, of an environment variable's text; raises KeyError or ValueError where that means
            nothing.
    """

    allowed: str
    check: Callable[[Any], T]
    parse: Callable[[str], Any] = str

    def checked(self, name: str, value: Any) -> T:
        """The value as it is kept; a SettingError if it isn't allowed for the setting ``name``."""
        try:
            return self.check(value)
        except (KeyError, TypeError, ValueError):
            raise _refusal(name, value, self.allowed) from None

    def parsed(self, variable: str, text: str) -> T:
        """The value that a text of an environment variable stands for; a SettingError if it isn't allowed."""
        try:
            value = self.parse(text)
        except (KeyError, ValueError):
            raise _refusal(variable, text, self.allowed) from None
        return self.checked(variable, value)


def _refusal(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name}={safe_text(repr(value))} is not allowed; allowed: {allowed}")


def _object_with(method: str, value: Any) -> Any:
    if isinstance(value, type) or (
        value is not None and not callable(getattr(value, method, None))
    ):
        raise TypeError
    return value


def _sinks(value: Any) -> tuple[Sink, ...]:
    given = tuple(value) if isinstance(value, Iterable) else (value,)
    if not given:
        return ()
    from otel_recfn.sinks.protocol import Sink  # it imports numpy

    if not all(
        isinstance(sink, Sink) and isinstance(getattr(sink, "name", None), str) for sink in given
    ):
        raise TypeError
    return given


def _scopes(value: Any) -> frozenset[RecordScope] | None:
    if isinstance(value, str):
        value = _parse_scopes(value)
    if value is None:
        return None
    if not isinstance(value, Iterable) or any(isinstance(item, bool) for item in value):
        raise TypeError
    return frozenset([RecordScope(scope) for scope in value]) or None


def _parse_scopes(text: str) -> set[RecordScope] | None:
    return (
        None
        if text.lower() == "all"
        else {RecordScope[part.strip().upper()] for part in text.split(",")}
    )


def _trace_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path.endswith((".json", ".json.gz")):
        raise ValueError
    if b"\0" in os.fsencode(
        path
    ):  # fsencode raises a ValueError for characters that no file name has
        raise ValueError
    return path


def _numbers(
    says: str, least: float, most: float, *, whole: bool = False, none: str = ""
) -> Kind[Any]:
    """A kind of number from ``least`` to ``most``; None, and the text ``none``, mean ``none``."""

    def check(value: Any) -> float | None:
        if value is None and none:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int if whole else (int, float))
            or not least <= value <= most
        ):
            raise ValueError
        return int(value) if whole else float(value)

    def parse(text: str) -> float | None:
        return None if none and text.lower() in ("none", none) else (int if whole else float)(text)

    return Kind(f"None ({none}) or {says}" if none else says, check, parse)


def _activities(value: Any) -> frozenset[str] | None:
    if isinstance(value, str):
        raise TypeError
    return (
        None
        if value is None
        else frozenset([str(getattr(each, "name", each)).upper() for each in value])
    )


def _instance_of(types: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, types):
        raise TypeError
    return value


def _one_of(allowed: Collection[str], value: Any) -> str:
    if value not in allowed:
        raise ValueError
    return str(value)


def _span_exporter(value: Any) -> Any:
    return (
        _one_of(SPAN_EXPORTERS, value) if isinstance(value, str) else _object_with("export", value)
    )


def _parse_bool(text: str) -> bool:
    meanings = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    return meanings[text.lower()]


_PARTS_OF_CALLS: dict[str, Callable[[str], Any]] = {
    "include": lambda text: [part.strip() for part in text.split(",")],
    "exclude": lambda text: [part.strip() for part in text.split(",")],
    "min_duration_ns": int,
    "max_depth": int,
    "c_calls": _parse_bool,
    "call_sites": _parse_bool,
}


def _parse_calls(text: str) -> bool | PythonCalls:
    if "=" not in text:
        return _parse_bool(text)
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    return PythonCalls(
        **{name.strip(): _PARTS_OF_CALLS[name.strip()](value.strip()) for name, _, value in parts}
    )


_SCOPE_NAMES = ", ".join(scope.name for scope in RecordScope)

PROVIDER: Kind[Any] = Kind(
    "None or an OpenTelemetry TracerProvider", partial(_object_with, "get_tracer")
)
METER_PROVIDER: Kind[Any] = Kind(
    "None or an OpenTelemetry MeterProvider", partial(_object_with, "get_meter")
)
_CALLABLE = partial(_object_with, "__call__")
ACTIVITIES: Kind[frozenset[str] | None] = Kind(
    "None or a list of torch.profiler's ProfilerActivity", _activities
)
SCHEDULE: Kind[Any] = Kind(
    "None or a function of a step's number, as torch.profiler.schedule(...) makes", _CALLABLE
)
READY: Kind[Any] = Kind("None or a function of the profile", _CALLABLE)
HOOK: Kind[Any] = Kind("None or a function of a row and of attributes", _CALLABLE)
SINKS: Kind[tuple[Sink, ...]] = Kind(
    "a list of sinks: objects of classes derived from otel_recfn.sinks.protocol.Sink, with a name",
    _sinks,
)
SCOPES: Kind[frozenset[RecordScope] | None] = Kind(
    f"all, a set of RecordScope, or names separated by commas: {_SCOPE_NAMES}",
    _scopes,
    _parse_scopes,
)
TRACE_PATH: Kind[str | None] = Kind("None or a path that ends in .json or .json.gz", _trace_path)
RATE: Kind[float | None] = _numbers(
    "how many a second: a number, zero or more", 0, MOST, none="all"
)
DURATION: Kind[float] = _numbers("a number of seconds from 0 to a billion, some 30 years", 0, 1e9)
_SECONDS = _numbers("a number of seconds, zero (never) or more", 0, MOST, none="never")
SECONDS: Kind[float | None] = replace(_SECONDS, check=lambda value: _SECONDS.check(value) or None)
BUDGET: Kind[int | None] = _numbers(
    f"a whole number of spans from 1 to {MOST_SPANS}", 1, MOST_SPANS, whole=True, none="all"
)
EVENTS: Kind[int] = _numbers("a whole number from 1", 1, MOST, whole=True)
BUFFER_BYTES: Kind[int] = _numbers(
    f"a whole number of bytes from {1 << 12} to {1 << 30}", 1 << 12, 1 << 30, whole=True
)
REQUEST_BYTES: Kind[int] = _numbers(
    f"a whole number of bytes from {1 << 10} to {1 << 26}", 1 << 10, 1 << 26, whole=True
)
BOOL: Kind[bool] = Kind("True or False", partial(_instance_of, (bool,)), _parse_bool)
CALLS: Kind[bool | PythonCalls] = Kind(
    f"True, False, or PythonCalls(...); in the environment some of {', '.join(_PARTS_OF_CALLS)} as name=value with semicolons "
    "between them: include=my_app,my_lib;max_depth=20",
    partial(_instance_of, (bool, PythonCalls)),
    _parse_calls,
)
SPAN_EXPORTER: Kind[Any] = Kind(
    f"None, {', '.join(SPAN_EXPORTERS)}, or an exporter of spans", _span_exporter
)
DETAIL: Kind[str] = Kind(", ".join(DETAILS), partial(_one_of, DETAILS), str.lower)
SPAN_NAMES: Kind[str] = Kind("short, torch", partial(_one_of, ("short", "torch")), str.lower)
