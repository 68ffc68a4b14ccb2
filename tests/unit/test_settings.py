"""One table has every setting; docstrings, docs/settings.md, README.md and the code say the same."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor, RecordScope, profile
from otel_recfn.batches.selection import RECORD_FUNCTIONS
from otel_recfn.model.errors import SettingError
from otel_recfn.model.events import Extra
from otel_recfn.settings import SETTINGS, Settings
from otel_recfn.settings.selected import selected
from otel_recfn.settings.table import OF_THE_PROCESS, PROFILE_SETTINGS, ProfileSettings, Setting

ROOT = Path(__file__).parents[2]


def rows_of(page: str, heading: str) -> list[str]:
    """The lines of the table below a heading, without its head."""
    section = page.split(f"# {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def row(setting: Setting) -> str:
    variable = f"`{setting.variable}`" if setting.variable else ""
    return line(f"`{setting.name}`", variable, setting.default_in_words, setting.meaning)


def line(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def test_the_page_has_every_setting_with_its_variable_default_and_meaning() -> None:
    of_the_process = [line("", f"`{each.variable}`", each.default_in_words, each.meaning) for each in OF_THE_PROCESS]
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert rows_of(page, "Settings") == [*map(row, SETTINGS), *of_the_process]


def test_the_readme_names_settings_that_there_are_with_their_defaults() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    defaults = {setting.name: setting.default for setting in SETTINGS}
    small = re.findall(r"^\| `(\w+)=([\d.]+)`", "\n".join(rows_of(readme, "Keep it small")), re.MULTILINE)
    assert len(small) >= 5
    assert {name: float(text) for name, text in small} == {name: defaults[name] for name, _ in small}
    words = {setting.name: setting.default_in_words for setting in SETTINGS}
    for each in rows_of(readme, "Settings"):
        names, default, _ = each.strip("|").split("|")
        for name in re.findall(r"`(\w+)`", names):
            assert default.strip().removesuffix("s") == words[name]


@pytest.mark.parametrize(
    ("documented", "settings"), [(OtelRecordFunctionInstrumentor.instrument, SETTINGS), (profile, PROFILE_SETTINGS)]
)
def test_a_docstring_has_every_setting_with_its_default_and_meaning(documented: object, settings: tuple[Setting, ...]) -> None:
    arguments = (documented.__doc__ or "").split("Args:\n")[1].split("\n\n")[0]
    meant = [f"{each.name}: {each.meaning.replace('`', '``')}. Default: {each.default_in_words}." for each in settings]
    assert " ".join(arguments.split()) == " ".join(meant)


def test_the_parameters_of_profile_are_the_settings_with_their_defaults_and_types() -> None:
    parameters = [each for each in inspect.signature(profile).parameters.values() if each.name != "others"]
    assert [(each.name, each.default) for each in parameters] == [(each.name, each.default) for each in PROFILE_SETTINGS]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters)
    types = {field.name: field.type for field in dataclasses.fields(ProfileSettings)}
    types["scopes"] = "Iterable[RecordScope] | None"
    assert {each.name: each.annotation for each in parameters} == types


@pytest.mark.parametrize("setting", PROFILE_SETTINGS, ids=lambda setting: setting.name)
def test_what_profile_refuses_is_told_with_what_is_allowed(setting: Setting) -> None:
    with pytest.raises(SettingError, match=re.escape(f"{setting.name}='x' is not allowed; allowed: {setting.kind.allowed}")):
        profile(**{setting.name: "x"})


@pytest.mark.parametrize("settings", [Settings, ProfileSettings])
def test_each_setting_that_selects_something_selects_that_alone(settings: type[Any]) -> None:
    off = {field.name: False for field in dataclasses.fields(settings) if field.metadata["selects"] is not None}
    assert (selected(settings(**off)).extras, selected(settings(**off)).sources) == (Extra.NONE, RECORD_FUNCTIONS)
    for name in off:
        asked, wanted = selected(settings(**off | {name: True})), settings.__dataclass_fields__[name].metadata["selects"]
        extra, sources = (wanted, set()) if isinstance(wanted, Extra) else (Extra.NONE, {wanted})
        assert (asked.extras, asked.sources - RECORD_FUNCTIONS) == (extra, sources)
    assert selected(settings(scopes=frozenset({RecordScope.FUNCTION}))).scopes == 1


def test_every_variable_that_the_code_names_is_in_the_table() -> None:
    known = {each.variable for each in (*SETTINGS, *OF_THE_PROCESS)} - {""}
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {found for text in sources for found in re.findall(r"OTEL_RECFN_[A-Z_]*[A-Z]", text)}
    assert named <= known
    assert {each.variable for each in OF_THE_PROCESS} <= named  # somebody reads it


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_is_an_allowed_value_and_holds_where_nobody_says_otherwise(setting: Setting) -> None:
    assert setting.kind.checked(setting.name, setting.default) == setting.default
    assert getattr(Settings.resolve({}, {}), setting.name) == setting.default


@pytest.mark.parametrize("setting", [each for each in SETTINGS if each.variable], ids=lambda setting: setting.name)
def test_what_the_environment_can_say_is_refused_with_what_is_allowed(setting: Setting) -> None:
    if setting.name == "chrome_trace":
        text, allowed = "trace", setting.kind.allowed
    else:
        text, allowed = "no such value", setting.kind.allowed_as_text
    with pytest.raises(SettingError, match=re.escape(f"{setting.variable}={text!r} is not allowed; allowed: {allowed}")):
        Settings.resolve({}, {setting.variable: text})


def test_an_unknown_keyword_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        SettingError, match=r"no such setting; allowed: tracer_provider, meter_provider, scopes, .*buffer_bytes$"
    ):
        Settings.resolve({"chrome_tarce": "trace.json"}, {})
