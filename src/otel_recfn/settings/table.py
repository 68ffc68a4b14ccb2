"""Every setting, each in one place: name, type, default, what is allowed, environment variable, meaning.

``instrument()``'s docstring and README.md repeat it; a test compares them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from otel_recfn.model.errors import SettingError
from otel_recfn.recording.protocol import DEFAULT_BUFFER_BYTES
from otel_recfn.settings import values
from otel_recfn.settings.values import Kind

if TYPE_CHECKING:
    from otel_recfn.model.scope import RecordScope
    from otel_recfn.sinks.protocol import Sink

T = TypeVar("T")
ENVIRONMENT_PREFIX = "OTEL_RECFN_"


def _setting(default: T, kind: Kind[T], meaning: str, *, default_in_words: str = "", environment: bool = True) -> T:
    """A field of ``Settings``.

    Args:
        default: what holds where neither a keyword nor the environment says anything.
        kind: what is allowed.
        meaning: as Markdown, for whoever sets it.
        default_in_words: where the value itself says little.
        environment: whether ``OTEL_RECFN_<NAME>`` sets it too.
    """
    words = default_in_words or str(default).lower()
    known = {"kind": kind, "meaning": meaning, "default_in_words": words, "environment": environment}
    return field(default=default, metadata=known)


@dataclass(frozen=True)
class Settings:
    """What ``instrument()`` was asked for."""

    tracer_provider: Any = _setting(
        None,
        values.PROVIDER,
        "whose span processors get the spans; the global one may be set later",
        default_in_words="the global one",
        environment=False,
    )
    scopes: frozenset[RecordScope] | None = _setting(
        None,
        values.SCOPES,
        "which `RecordScope`s: a set, or names with commas (`FUNCTION,USER_SCOPE`); module ranges follow `modules` alone",
        default_in_words="all",
    )
    chrome_trace: str | None = _setting(
        None,
        values.TRACE_PATH,
        "a file to write while the program runs: `.json` or `.json.gz`; what can't be written or replaced there is refused at "
        "once",
    )
    roots_per_second: float | None = _setting(
        1.0,
        values.RATE,
        "traces we start where no span is current: the first 100, then so many a second; `None` (`none`) for all",
    )
    record_shapes: bool = _setting(False, values.BOOL, "shapes and dtypes of the inputs too")
    modules: bool = _setting(True, values.BOOL, "ranges for `nn.Module` calls and optimizer steps")
    sinks: tuple[Sink, ...] = _setting(
        (), values.SINKS, "further sinks, such as `InMemorySink()`", default_in_words="none", environment=False
    )
    enabled: bool = _setting(True, values.BOOL, "false: registers and costs nothing")
    buffer_bytes: int = _setting(
        DEFAULT_BUFFER_BYTES,
        values.BUFFER_BYTES,
        "bound of each thread's records between two drains (a third more while it grows); a range that doesn't fit is dropped "
        "whole and counted",
        default_in_words=f"{DEFAULT_BUFFER_BYTES >> 20} MiB",
    )

    @classmethod
    def resolve(cls, keywords: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
        """Settings from keyword arguments and the environment.

        Raises:
            SettingError: an unknown keyword, or a value that isn't allowed, from either side.
        """
        by_name = {setting.name: setting for setting in SETTINGS}
        unknown = sorted(set(keywords) - set(by_name))
        if unknown:
            raise SettingError(f"{', '.join(unknown)}: no such setting; allowed: {', '.join(by_name)}")
        found = _from_environment(os.environ if environment is None else environment)
        for name, value in keywords.items():
            found[name] = by_name[name].kind.checked(name, value)
        return cls(**found)


class Setting(NamedTuple):
    """What is known of a setting, as ``_setting`` describes it."""

    name: str
    default: Any
    kind: Kind[Any]
    meaning: str
    default_in_words: str
    environment: bool

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty where none does."""
        return ENVIRONMENT_PREFIX + self.name.upper() if self.environment else ""


SETTINGS = tuple(Setting(item.name, item.default, **item.metadata) for item in fields(Settings))


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for setting in SETTINGS:
        text = environment.get(setting.variable, "").strip()
        if text:
            found[setting.name] = setting.kind.parsed(setting.variable, text)
    return found


class OfTheProcess(NamedTuple):
    """An environment variable that no ``instrument()`` can set: it holds for the whole process."""

    variable: str
    default_in_words: str
    meaning: str


OF_THE_PROCESS = (
    OfTheProcess(
        ENVIRONMENT_PREFIX + "RECORDER",
        "`auto`",
        "`native` or `python`, to insist on one; else the native one where it was built",
    ),
    OfTheProcess(ENVIRONMENT_PREFIX + "CACHE_DIR", "per user", "where the observer's builds are kept"),
)
