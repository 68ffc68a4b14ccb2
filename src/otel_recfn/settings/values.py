"""The kinds of values that settings have: what is allowed, in Python and as text of an environment variable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from otel_recfn.model.errors import SettingError
from otel_recfn.model.events import RecordScope
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.support.texts import safe_text

if TYPE_CHECKING:
    from otel_recfn.sinks.protocol import Sink

T = TypeVar("T")
MIN_BUFFER_BYTES = 4096
MAX_BUFFER_BYTES = 1 << 30
SPAN_EXPORTERS = ("otlp", "otlp-grpc", "otlp-http")
MOST_SPANS = 1_000_000_000
LONGEST_SECONDS = 1e9
"""Some 30 years, which stand for whatever is longer: systems refuse to wait for so long."""
MIN_REQUEST_BYTES = 1024
MAX_REQUEST_BYTES = 1 << 26
"""What the specification allows a client to send."""
DETAILS: Mapping[str, Mapping[str, Any]] = {
    "low": {"span_budget": 200, "ordinary_span_budget": 10, "trace_span_budget": 1000, "spans_per_second": 200.0},
    "normal": {},
    "all": {"span_budget": None, "ordinary_span_budget": None, "trace_span_budget": None, "spans_per_second": None},
}
"""The settings that the words of ``detail`` stand for, where they aren't the defaults."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """What values are allowed.

    Attributes:
        allowed: these, in words.
        check: gives the value as it is kept; raises KeyError, TypeError or ValueError where it isn't allowed.
        allowed_as_text: what an environment variable may say.
        parse: gives what ``check`` takes; raises KeyError or ValueError where the text means nothing.
    """

    allowed: str
    check: Callable[[Any], T]
    allowed_as_text: str = ""
    parse: Callable[[str], Any] = str

    def checked(self, name: str, value: Any) -> T:
        """The value as it is kept.

        Raises:
            SettingError: it isn't allowed for the setting ``name``.
        """
        try:
            return self.check(value)
        except (KeyError, TypeError, ValueError):
            raise _refusal(name, value, self.allowed) from None

    def parsed(self, variable: str, text: str) -> T:
        """What a text of an environment variable means.

        Raises:
            SettingError: it means nothing, or what isn't allowed.
        """
        try:
            value = self.parse(text)
        except (KeyError, ValueError):
            raise _refusal(variable, text, self.allowed_as_text) from None
        return self.checked(variable, value)


def _refusal(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name}={safe_text(repr(value))} is not allowed; allowed: {allowed}")


def _object_with(method: str, value: Any) -> Any:
    if isinstance(value, type) or (value is not None and not callable(getattr(value, method, None))):
        raise TypeError
    return value


def _sinks(value: Any) -> tuple[Sink, ...]:
    given = tuple(value) if isinstance(value, Iterable) else (value,)
    if not given:
        return ()
    from otel_recfn.sinks.protocol import Sink  # which imports numpy

    for sink in given:
        was_written_for_earlier_versions = hasattr(sink, "write_open") or callable(getattr(sink, "wants_unsampled", None))
        if not isinstance(sink, Sink) or was_written_for_earlier_versions or not isinstance(getattr(sink, "name", None), str):
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
    return None if text.lower() == "all" else {RecordScope[part.strip().upper()] for part in text.split(",")}


def _trace_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path.endswith((".json", ".json.gz")):
        raise ValueError
    if b"\0" in os.fsencode(path):  # which raises a ValueError of characters that no name of a file has
        raise ValueError
    return path


def _rate(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError
    return float(value)


def _parse_rate(text: str) -> float | None:
    return None if text.lower() in ("none", "all") else float(text)


def _seconds(value: Any) -> float | None:
    return _rate(value) or None


def _duration(value: Any) -> float:
    seconds = _rate(value)
    if seconds is None:
        raise ValueError
    return min(seconds, LONGEST_SECONDS)


def _parse_seconds(text: str) -> float | None:
    return None if text.lower() in ("none", "never") else float(text)


def _activities(value: Any) -> Any:
    if value is not None and {str(getattr(each, "name", each)).upper() for each in value} != {"CPU"}:
        raise ValueError
    return value


def _callable(value: Any) -> Any:
    if value is not None and not callable(value):
        raise TypeError
    return value


def _span_exporter(value: Any) -> Any:
    if value is None:
        return value
    if isinstance(value, str):
        return _parse_span_exporter(value)
    if not callable(getattr(value, "export", None)):
        raise TypeError
    return value


def _parse_span_exporter(text: str) -> str:
    if text not in SPAN_EXPORTERS:
        raise ValueError
    return text


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _parse_bool(text: str) -> bool:
    meanings = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    return meanings[text.lower()]


def _whole_number(least: int, most: int | None, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise ValueError
    return int(value)


def _detail(value: Any) -> str:
    if value not in DETAILS:
        raise ValueError
    return str(value)


def _calls(value: Any) -> bool | PythonCalls:
    if not isinstance(value, (bool, PythonCalls)):
        raise TypeError
    return value


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
    return PythonCalls(**{name.strip(): _PARTS_OF_CALLS[name.strip()](value.strip()) for name, _, value in parts})


def _budget(value: Any) -> int | None:
    return None if value is None else _whole_number(1, MOST_SPANS, value)


def _parse_budget(text: str) -> int | None:
    return None if text.lower() in ("none", "all") else int(text)


_SCOPE_NAMES = ", ".join(scope.name for scope in RecordScope)

PROVIDER: Kind[Any] = Kind("None or an OpenTelemetry TracerProvider", partial(_object_with, "get_tracer"))
METER_PROVIDER: Kind[Any] = Kind("None or an OpenTelemetry MeterProvider", partial(_object_with, "get_meter"))
ACTIVITIES: Kind[Any] = Kind("None or [ProfilerActivity.CPU]; what a GPU does is not recorded: use torch.profiler", _activities)
SCHEDULE: Kind[Any] = Kind("None or a function of a step's number, as torch.profiler.schedule(...) makes", _callable)
READY: Kind[Any] = Kind("None or a function of the profile", _callable)
HOOK: Kind[Any] = Kind("None or a function of a row and of attributes", _callable)
SINKS: Kind[tuple[Sink, ...]] = Kind(
    "a list of sinks: objects of classes derived from otel_recfn.sinks.protocol.Sink, with a name; what was write_open() is "
    "batch.long_open in write(), and wants_unsampled is true or false",
    _sinks,
)
SCOPES: Kind[frozenset[RecordScope] | None] = Kind(
    f"None, a set of RecordScope, or names separated by commas: {_SCOPE_NAMES}",
    _scopes,
    f"all, or names separated by commas: {_SCOPE_NAMES}",
    _parse_scopes,
)
TRACE_PATH: Kind[str | None] = Kind("None or a path that ends in .json or .json.gz", _trace_path)
RATE: Kind[float | None] = Kind(
    "None (all) or how many a second: a number, zero or more",
    _rate,
    "none (all) or how many a second: a number, zero or more",
    _parse_rate,
)
SECONDS: Kind[float | None] = Kind(
    "None (never) or a number of seconds, zero (never) or more",
    _seconds,
    "none (never) or a number of seconds, zero (never) or more",
    _parse_seconds,
)
DURATION: Kind[float] = Kind("a number of seconds, zero or more", _duration, "a number of seconds, zero or more", float)


def _bytes_kind(least: int, most: int) -> Kind[int]:
    allowed = f"from {least} to {most}"
    return Kind(f"a whole number of bytes {allowed}", partial(_whole_number, least, most), f"a whole number {allowed}", int)


BOOL: Kind[bool] = Kind("True or False", _bool, "true or false", _parse_bool)
CALLS: Kind[bool | PythonCalls] = Kind(
    "True, False or PythonCalls(...)",
    _calls,
    f"true, false, or some of {', '.join(_PARTS_OF_CALLS)} as name=value with semicolons between them: "
    "include=my_app,my_lib;max_depth=20",
    _parse_calls,
)
BUFFER_BYTES = _bytes_kind(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES)
REQUEST_BYTES = _bytes_kind(MIN_REQUEST_BYTES, MAX_REQUEST_BYTES)
_SPAN_EXPORTERS = ", ".join(SPAN_EXPORTERS)
SPAN_EXPORTER: Kind[Any] = Kind(
    f"None, {_SPAN_EXPORTERS}, or an exporter of spans", _span_exporter, _SPAN_EXPORTERS, _parse_span_exporter
)
DETAIL: Kind[str] = Kind(", ".join(DETAILS), _detail, ", ".join(DETAILS), str.lower)
BUDGET: Kind[int | None] = Kind(
    f"None (no limit) or a whole number of spans from 1 to {MOST_SPANS}",
    _budget,
    f"none (no limit) or a whole number from 1 to {MOST_SPANS}",
    _parse_budget,
)
EVENTS: Kind[int] = Kind("a whole number from 1", partial(_whole_number, 1, None))
