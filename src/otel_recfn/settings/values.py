"""The kinds of values of settings: which values are allowed in Python, and which texts in an
environment variable.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from otel_recfn.errors import SettingError
from otel_recfn.model.events import RecordScope
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.support.safe_texts import safe_repr

if TYPE_CHECKING:
    from otel_recfn.sinks.protocol import Sink

T = TypeVar("T")
SPAN_EXPORTERS = ("otlp", "otlp-grpc", "otlp-http")
MAX_SPANS = 1_000_000_000
MAX_NUMBER = sys.float_info.max
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
"""The settings that each value of ``detail`` stands for, if they aren't the defaults; ``low`` has a
fifth of the defaults.
"""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of value: which values are allowed, and how a text is read.

    Attributes:
        allowed: the allowed values, in words.
        check: returns the value for the settings; raises KeyError, TypeError or ValueError if the
            value isn't allowed.
        parse: converts the text of an environment variable to a value for ``check``; raises
            KeyError or ValueError if that is impossible.
    """

    allowed: str
    check: Callable[[Any], T]
    parse: Callable[[str], Any] = str

    def check_value(self, name: str, value: Any) -> T:
        """The value for the setting ``name``.

        Raises:
            SettingError: the value isn't allowed.
        """
        try:
            return self.check(value)
        except (KeyError, TypeError, ValueError):
            raise _refusal(name, value, self.allowed) from None

    def parse_text(self, variable: str, text: str) -> T:
        """The value for the text of an environment variable.

        Raises:
            SettingError: the text isn't allowed.
        """
        try:
            value = self.parse(text)
        except (KeyError, ValueError):
            raise _refusal(variable, text, self.allowed) from None
        return self.check_value(variable, value)


def _refusal(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name}={safe_repr(value)} is not allowed; allowed: {allowed}")


def _object_with(method: str, value: Any) -> Any:
    if isinstance(value, type) or (
        value is not None and not callable(getattr(value, method, None))
    ):
        raise TypeError
    return value


def _sinks(value: Any) -> tuple[Sink, ...]:
    items = tuple(value) if isinstance(value, Iterable) else (value,)
    if not items:
        return ()
    from otel_recfn.sinks.protocol import Sink  # it imports numpy

    if not all(
        isinstance(sink, Sink) and isinstance(getattr(sink, "name", None), str) for sink in items
    ):
        raise TypeError
    return items


def _scopes(value: Any) -> frozenset[RecordScope] | None:
    if isinstance(value, str):
        value = _parse_scopes(value)
    if value is None:
        return None
    if not isinstance(value, Iterable):
        raise TypeError
    items = list(value)
    if not items or any(isinstance(item, bool) for item in items):
        raise ValueError
    return frozenset([RecordScope(scope) for scope in items])


def _parse_scopes(text: str) -> set[RecordScope] | None:
    if text.lower() == "all":
        return None
    return {RecordScope[part.strip().upper()] for part in text.split(",")}


def _trace_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path.endswith((".json", ".json.gz")):
        raise ValueError
    # Fsencode raises a ValueError for characters that no file name has.
    if b"\0" in os.fsencode(path):
        raise ValueError
    return path


def _text_or_none(text: str) -> str | None:
    return None if text.lower() == "none" else text


def _numbers(
    says: str, low: float, high: float, *, whole: bool = False, none: str = ""
) -> Kind[Any]:
    """A kind of number from ``low`` to ``high``.

    If ``none`` is given, None and the texts ``none`` and that word are allowed, too.
    """

    def check(value: Any) -> float | None:
        if value is None and none:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int if whole else (int, float))
            or not low <= value <= high
        ):
            raise ValueError
        return int(value) if whole else float(value)

    def parse(text: str) -> float | None:
        return None if none and text.lower() in ("none", none) else (int if whole else float)(text)

    return Kind(f"None ({none}) or {says}" if none else says, check, parse)


def _bytes(low: int, high: int) -> Kind[int]:
    """A kind of whole number of bytes; a text may have a larger unit."""
    says = (
        f"a whole number of bytes from {low} to {high}; in the environment also with a unit, as"
        " 8MiB or 512 KiB"
    )
    return replace(_numbers(says, low, high, whole=True), parse=_parse_bytes)


def _parse_bytes(text: str) -> int:
    found = re.fullmatch(r"(\+?[\d_.]+)\s*([a-z]*)", text.lower())
    size = Fraction(found[1].replace("_", "")) * _UNITS[found[2]] if found else Fraction(1, 2)
    if size.denominator != 1:
        raise ValueError
    return int(size)


_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
"""The number of bytes of each unit."""


def _activities(value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError
    items = frozenset([str(getattr(each, "name", each)).upper() for each in value])
    if not items:
        raise ValueError
    return items


def _check_instance(types: tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, types):
        raise TypeError
    return value


def _check_choice(allowed: Collection[str], value: Any) -> str:
    if value not in allowed:
        raise ValueError
    return str(value)


def _span_exporter(value: Any) -> Any:
    return (
        _check_choice(SPAN_EXPORTERS, value)
        if isinstance(value, str)
        else _object_with("export", value)
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


_CALLS_PARSERS: dict[str, Callable[[str], Any]] = {
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
        **{name.strip(): _CALLS_PARSERS[name.strip()](value.strip()) for name, _, value in parts}
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
    "None or a list of one or more of torch.profiler's ProfilerActivity", _activities
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
    f"all, a set of one or more RecordScopes, or names separated by commas: {_SCOPE_NAMES}",
    _scopes,
    _parse_scopes,
)
TRACE_PATH: Kind[str | None] = Kind(
    "None or a path that ends in .json or .json.gz", _trace_path, _text_or_none
)
RATE: Kind[float | None] = _numbers(
    "how many a second: a number, zero or more", 0, MAX_NUMBER, none="all"
)
SPAN_RATE: Kind[float | None] = _numbers(
    "how many a second: a number from 1", 1, MAX_NUMBER, none="all"
)
DURATION: Kind[float] = _numbers("a number of seconds from 0 to a billion, some 30 years", 0, 1e9)
_SECONDS = _numbers("a number of seconds, zero (never) or more", 0, MAX_NUMBER, none="never")
SECONDS: Kind[float | None] = replace(_SECONDS, check=lambda value: _SECONDS.check(value) or None)
BUDGET: Kind[int | None] = _numbers(
    f"a whole number of spans from 1 to {MAX_SPANS}", 1, MAX_SPANS, whole=True, none="all"
)
EVENTS: Kind[int] = _numbers("a whole number from 1", 1, MAX_NUMBER, whole=True)
BUFFER_BYTES: Kind[int] = _bytes(1 << 12, 1 << 30)
REQUEST_BYTES: Kind[int] = _bytes(1 << 10, 1 << 26)
BOOL: Kind[bool] = Kind("True or False", partial(_check_instance, (bool,)), _parse_bool)
BOOL_OR_NONE: Kind[bool | None] = Kind(
    "None, True or False", partial(_check_instance, (bool, type(None)))
)
CALLS: Kind[bool | PythonCalls] = Kind(
    f"True, False, or PythonCalls(...); in the environment some of {', '.join(_CALLS_PARSERS)} as"
    " name=value with semicolons between them: include=my_app,my_lib;max_depth=20",
    partial(_check_instance, (bool, PythonCalls)),
    _parse_calls,
)
SPAN_EXPORTER: Kind[Any] = Kind(
    f"None, {', '.join(SPAN_EXPORTERS)}, or an exporter of spans", _span_exporter, _text_or_none
)
DETAIL: Kind[str] = Kind(", ".join(DETAILS), partial(_check_choice, DETAILS), str.lower)
SPAN_NAMES: Kind[str] = Kind("short, torch", partial(_check_choice, ("short", "torch")), str.lower)
