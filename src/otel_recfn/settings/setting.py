"""A setting: its name, its values, and how it is explained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

from otel_recfn.model.events import EventSource, Extra
from otel_recfn.settings.values import Kind

T = TypeVar("T")
ENVIRONMENT_PREFIX = "OTEL_RECFN_"


class Setting(NamedTuple):
    """A setting: its name, its values, and how it is explained."""

    name: str
    default: Any
    """The value if neither a keyword nor the environment gives one."""
    kind: Kind[Any]
    meaning: str
    """The explanation for users, as Markdown."""
    default_in_words: str = ""
    environment: bool = True
    """Whether ``OTEL_RECFN_<NAME>`` sets it too."""
    selects: Extra | EventSource | None = None
    """The extra or the source that is recorded if it is true; see ``selected``."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty if there is none."""
        return ENVIRONMENT_PREFIX + self.name.upper() if self.environment else ""


def setting(default: T, kind: Kind[T], meaning: str, **more: Any) -> T:
    """A setting as a field of a dataclass.

    ``more`` has further fields of its ``Setting``.
    """
    return field(default=default, metadata={"kind": kind, "meaning": meaning, **more})


def field_settings(table: type, **more: Any) -> tuple[Setting, ...]:
    """The settings that are the fields of a dataclass.

    ``more`` has fields of ``Setting`` that all of them share.
    """
    return tuple([_field_setting(each, more) for each in fields(table)])


def _field_setting(each: Field[Any], more: Mapping[str, Any]) -> Setting:
    known = {"default_in_words": str(each.default).lower(), **each.metadata, **more}
    return Setting(each.name, each.default, **known)


def with_arguments(docstring: str | None, settings: Iterable[Setting]) -> str | None:
    """The docstring, for ``help()``, with one entry for each setting in place of ``kwargs``."""
    lines = [f"{each.name}: {each.meaning}. Default: {each.default_in_words}." for each in settings]
    return docstring and docstring.replace(
        "kwargs: the settings of docs/settings.md.", ("\n" + " " * 12).join(lines)
    )
