"""The settings of an instrumentation: keyword arguments first, then ``OTEL_RECFN_*``, then the defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from otel_recfn.model.errors import SettingError
from otel_recfn.model.scope import RecordScope
from otel_recfn.recording.protocol import DEFAULT_BUFFER_BYTES

ENVIRONMENT_PREFIX = "OTEL_RECFN_"
MIN_BUFFER_BYTES = 4096
MAX_BUFFER_BYTES = 1 << 30


@dataclass(frozen=True)
class Settings:
    """What ``instrument()`` was asked for.

    Attributes:
        scopes: the scopes to record; None, and the empty set as in PyTorch, for all. Module calls follow ``modules`` alone.
        chrome_trace: a path that ends in ``.json`` or ``.json.gz``; None for no file.
        roots_per_second: traces that we start ourselves, beyond the first 100; None for all.
        record_shapes: record shapes and dtypes of operators' inputs.
        modules: record nn.Module calls and optimizer steps.
        buffer_bytes: bound of each recording thread's buffer.
        enabled: False registers the instrumentation and records nothing.
    """

    scopes: frozenset[RecordScope] | None = None
    chrome_trace: str | None = None
    roots_per_second: float | None = 1.0
    record_shapes: bool = False
    modules: bool = True
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    enabled: bool = True

    @classmethod
    def resolve(cls, keywords: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
        """Settings from keyword arguments and the environment.

        Raises:
            SettingError: an unknown keyword, or a value that isn't allowed, from either side.
        """
        unknown = sorted(set(keywords) - {item.name for item in fields(cls)})
        if unknown:
            allowed = ", ".join(item.name for item in fields(cls))
            raise SettingError(f"{', '.join(unknown)}: no such setting; allowed: tracer_provider, sinks, {allowed}")
        values = _from_environment(os.environ if environment is None else environment)
        for name, value in keywords.items():
            values[name] = _CHECKS[name](name, value)
        return cls(**values)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name in _CHECKS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        text = environment.get(variable, "").strip()
        if text:
            values[name] = _CHECKS[name](variable, _PARSERS[name](variable, text))
    return values


def _refuse(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name}={value!r} is not allowed; allowed: {allowed}")


def _check_scopes(name: str, value: Any) -> frozenset[RecordScope] | None:
    names = ", ".join(scope.name for scope in RecordScope)
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable) or any(isinstance(item, bool) for item in value):
        raise _refuse(name, value, f"None or a set of RecordScope: {names}")
    try:
        return frozenset(RecordScope(scope) for scope in value) or None
    except ValueError:
        raise _refuse(name, value, f"None or a set of RecordScope: {names}") from None


def _check_chrome_trace(name: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        path = os.fspath(value)
    except TypeError:
        path = value
    if not isinstance(path, str) or "\0" in path or not path.endswith((".json", ".json.gz")):
        raise _refuse(name, value, "None or a path that ends in .json or .json.gz")
    return path


def _check_rate(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):
        raise _refuse(name, value, "None (all) or a number of traces a second, zero or more")
    return float(value)


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, value, "True or False")
    return value


def _check_buffer_bytes(name: str, value: Any) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not MIN_BUFFER_BYTES <= value <= MAX_BUFFER_BYTES:
        raise _refuse(name, value, f"a whole number of bytes from {MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}")
    return int(value)


def _parse_scopes(variable: str, text: str) -> Any:
    if text.lower() == "all":
        return None
    by_name = {scope.name: scope for scope in RecordScope}
    try:
        return {by_name[part.strip().upper()] for part in text.split(",")}
    except KeyError:
        raise _refuse(variable, text, f"all, or names separated by commas: {', '.join(by_name)}") from None


def _parse_bool(variable: str, text: str) -> bool:
    meanings = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    try:
        return meanings[text.lower()]
    except KeyError:
        raise _refuse(variable, text, "true or false") from None


def _parse_rate(variable: str, text: str) -> float | None:
    if text.lower() in ("none", "all"):
        return None
    try:
        return float(text)
    except ValueError:
        raise _refuse(variable, text, "none (all) or a number of traces a second, zero or more") from None


def _parse_int(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _refuse(variable, text, f"a whole number from {MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}") from None


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "scopes": _check_scopes,
    "chrome_trace": _check_chrome_trace,
    "roots_per_second": _check_rate,
    "record_shapes": _check_bool,
    "modules": _check_bool,
    "buffer_bytes": _check_buffer_bytes,
    "enabled": _check_bool,
}

_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "scopes": _parse_scopes,
    "chrome_trace": lambda _variable, text: text,
    "roots_per_second": _parse_rate,
    "record_shapes": _parse_bool,
    "modules": _parse_bool,
    "buffer_bytes": _parse_int,
    "enabled": _parse_bool,
}
