"""The check of the values that a program and its environment give to settings.

    keywords                 not allowed ──► SettingError
    environment variables    not allowed ──► ignored, with a message: the program may not know them

Budgets may contradict each other: each is for a part of what the next one is for.

    ordinary_span_budget    spans of a request like most
    span_budget             spans of any request
    trace_span_budget       spans of all requests of a trace
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from otel_recfn.errors import SettingError
from otel_recfn.settings.setting import Setting

BUDGETS = ("ordinary_span_budget", "span_budget", "trace_span_budget")
IGNORED = "It is ignored, as if it were not set"


def check_keywords(settings: Iterable[Setting], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The values of keywords as they are kept.

    Raises:
        SettingError: a keyword is no setting, or its value isn't allowed.
    """
    by_name = {setting.name: setting for setting in settings}
    if unknown := sorted(set(keywords) - set(by_name)):
        messages = [
            f"{name} is not a setting of otel-recfn; {suggestion(name, by_name)}"
            for name in unknown
        ]
        raise SettingError(". ".join(messages))
    return {name: by_name[name].kind.check_value(name, value) for name, value in keywords.items()}


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about a name that isn't known: the known name that was probably meant;
    all of them, if none is similar.

    They all begin with the ``prefix``, which makes none more similar.
    """
    import difflib

    known = list(known)
    nearest = difflib.get_close_matches(
        name.removeprefix(prefix), [each.removeprefix(prefix) for each in known], 1
    )
    return f"did you mean {prefix}{nearest[0]}?" if nearest else f"there are {', '.join(known)}"


class Variables(NamedTuple):
    """What the environment says of settings."""

    values: dict[str, Any]
    """The values of settings whose variables are set."""
    messages: list[str]
    """A message for each variable that is ignored because its value isn't allowed."""


def read_variables(settings: Iterable[Setting], environment: Mapping[str, str]) -> Variables:
    """The values that the environment has for these settings."""
    found = dict[str, Any]()
    variables = dict[str, str]()
    messages = list[str]()
    for setting in settings:
        text = environment.get(setting.variable, "").strip()
        if text:
            variables[setting.name] = setting.variable
            try:
                found[setting.name] = setting.kind.parse_text(setting.variable, text)
            except SettingError as error:
                messages.append(f"{error}. {IGNORED}")
    while contradiction := contradiction_in(found, variables):
        messages.append(f"{contradiction.message}. {IGNORED}")
        del found[contradiction.name]
    return Variables(found, messages)


class Contradiction(NamedTuple):
    """A budget that is smaller than the budget of a part of what it is for."""

    name: str
    message: str


def contradiction_in(
    values: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Contradiction | None:
    """The first contradiction of these values; None if there is none.

    Args:
        values: the values that were given, by setting.
        names: the name that the program gave each by, if that isn't the setting's.
    """
    budgets = {name: values[name] for name in BUDGETS if name in values}
    if budgets.get("ordinary_span_budget", 0) is None:  # then it is what span_budget is
        del budgets["ordinary_span_budget"]
    for (part_name, part_limit), (name, limit) in combinations(budgets.items(), 2):
        if limit is not None and (part_limit is None or limit < part_limit):
            part, whole = [(names or {}).get(each, each) for each in (part_name, name)]
            return Contradiction(
                name,
                f"{whole}={limit} is below {part}={part_limit}; raise {whole}, or lower {part}",
            )
    return None
