"""One table has every setting; docstrings, docs/settings.md, README.md and the code say the
same; ``python_calls`` in words.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor, PythonCalls, RecordScope, profile
from otel_recfn.batches.selection import RECORD_FUNCTIONS
from otel_recfn.errors import SettingError
from otel_recfn.model.events import Extra
from otel_recfn.model.python_calls import ALL_CALLS, common_choice
from otel_recfn.settings.selecting import select_by_settings
from otel_recfn.settings.setting import Setting
from otel_recfn.settings.table import PROFILE_SETTINGS, SETTINGS, ProfileSettings, Settings
from otel_recfn.settings.variables import PROCESS_VARIABLES, wrong_variables

ROOT = Path(__file__).parents[2]


REGENERATE = f"run {sys.executable} scripts/generate_settings.py and commit what it writes"


def rows_of(page: str, heading: str) -> list[str]:
    """The lines of the table below a heading, without its head."""
    section = page.split(f"# {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


@pytest.fixture
def generator() -> Any:
    spec = importlib.util.spec_from_file_location(
        "generate_settings", ROOT / "scripts" / "generate_settings.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stale(generator: Any) -> list[str]:
    return [
        path.name
        for path, text in generator.files().items()
        if path.read_text(encoding="utf-8") != text
    ]


def test_the_page_and_the_docstrings_are_what_the_table_gives(generator: Any) -> None:
    assert not stale(generator), REGENERATE


def test_the_help_of_instrument_has_each_setting() -> None:
    docstring = OtelRecordFunctionInstrumentor.instrument.__doc__ or ""
    assert [
        each.name for each in SETTINGS if f"{each.name}: {each.meaning}. Default: " not in docstring
    ] == []


def test_a_meaning_that_is_changed_alone_is_found(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [
        each._replace(meaning="what it is now") if each.name == "detail" else each
        for each in SETTINGS
    ]
    monkeypatch.setattr(generator, "SETTINGS", changed)
    assert stale(generator) == ["settings.md"]
    monkeypatch.setattr(generator, "PROFILE_SETTINGS", PROFILE_SETTINGS[1:])
    assert stale(generator) == ["settings.md", "profiling.py"]


def test_the_readme_names_settings_that_there_are_with_values_they_take() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    settings = {setting.name: setting for setting in SETTINGS}
    named = re.findall(r"`(\w+)=([^`]+)`", "\n".join(rows_of(readme, "Which setting do I need?")))
    assert len(named) >= 5
    for name, value in named:
        if name.islower():
            settings[name].kind.check_value(name, ast.literal_eval(value))


def test_the_parameters_of_profile_are_the_settings_with_their_defaults_and_types() -> None:
    parameters = [
        each for each in inspect.signature(profile).parameters.values() if each.name != "others"
    ]
    assert [(each.name, each.default) for each in parameters] == [
        (each.name, each.default) for each in PROFILE_SETTINGS
    ]
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters)
    types = {field.name: field.type for field in dataclasses.fields(ProfileSettings)}
    types["scopes"] = "Iterable[RecordScope] | str | None"
    assert {each.name: each.annotation for each in parameters} == types


@pytest.mark.parametrize("setting", PROFILE_SETTINGS, ids=lambda setting: setting.name)
def test_what_profile_refuses_is_told_with_what_is_allowed(setting: Setting) -> None:
    with pytest.raises(
        SettingError,
        match=re.escape(f"{setting.name}='x' is not allowed; allowed: {setting.kind.allowed}"),
    ):
        profile(**{setting.name: "x"})


@pytest.mark.parametrize("settings", [Settings, ProfileSettings])
def test_each_setting_that_selects_something_selects_that_alone(settings: type[Any]) -> None:
    off = {
        field.name: False
        for field in dataclasses.fields(settings)
        if field.metadata.get("selects") is not None
    }
    assert (
        select_by_settings(settings(**off)).extras,
        select_by_settings(settings(**off)).sources,
    ) == (
        Extra.NONE,
        RECORD_FUNCTIONS,
    )
    for name in off:
        asked = select_by_settings(settings(**off | {name: True}))
        wanted = settings.__dataclass_fields__[name].metadata["selects"]
        extra, sources = (wanted, set()) if isinstance(wanted, Extra) else (Extra.NONE, {wanted})
        assert (asked.extras, asked.sources - RECORD_FUNCTIONS) == (extra, sources)
    assert select_by_settings(settings(scopes=frozenset({RecordScope.FUNCTION}))).scopes == 1


def test_every_variable_that_the_code_names_is_in_the_table() -> None:
    known = {each.variable for each in SETTINGS if each.variable} | {*PROCESS_VARIABLES}
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {found for text in sources for found in re.findall(r"OTEL_RECFN_[A-Z_]*[A-Z]", text)}
    assert named <= known
    assert {*PROCESS_VARIABLES} <= named  # somebody reads it


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_is_an_allowed_value_and_holds_where_nobody_says_otherwise(
    setting: Setting,
) -> None:
    assert setting.kind.check_value(setting.name, setting.default) == setting.default
    assert getattr(Settings.resolve({}, {}), setting.name) == setting.default


@pytest.mark.parametrize(
    "setting", [each for each in SETTINGS if each.variable], ids=lambda setting: setting.name
)
def test_what_the_environment_can_say_is_ignored_and_told_with_what_is_allowed(
    setting: Setting,
) -> None:
    environment = {setting.variable: "no such value"}
    assert Settings.resolve({}, environment) == Settings()
    [message] = wrong_variables(environment)
    assert message.startswith(
        f"{setting.variable}='no such value' is not allowed; allowed: {setting.kind.allowed}. It is"
        " ignored"
    )


@pytest.mark.parametrize(
    "setting",
    [each for each in SETTINGS if each.variable and each.default_in_words == "none"],
    ids=lambda setting: setting.name,
)
def test_none_is_taken_where_the_page_has_it_as_the_default(setting: Setting) -> None:
    for text in ("none", "None"):
        assert (
            getattr(Settings.resolve({}, {setting.variable: text}), setting.name) == setting.default
        )
        assert wrong_variables({setting.variable: text}) == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8388608", 8 << 20),
        ("8_388_608", 8 << 20),
        ("+8388608", 8 << 20),
        ("8MiB", 8 << 20),
        (" 512 kib ", 512 << 10),
        ("3.5MiB", 7 << 19),
        ("1GiB", 1 << 30),
        ("5000B", 5000),
    ],
)
def test_a_size_in_a_variable_may_have_a_unit(text: str, meant: int) -> None:
    assert Settings.resolve({}, {"OTEL_RECFN_BUFFER_BYTES": text}).buffer_bytes == meant


@pytest.mark.parametrize(
    "text", ["8MB", "MiB", "8 MiB 3", "-8MiB", "0.3KiB", "1.2.3MiB", "2GiB", "1KiB", "_"]
)
def test_what_is_no_size_is_ignored_and_told(text: str) -> None:
    [message] = wrong_variables({"OTEL_RECFN_BUFFER_BYTES": text})
    allowed = (
        "a whole number of bytes from 4096 to 1073741824; in the environment also with a unit, as"
        " 8MiB or 512 KiB"
    )
    assert f"allowed: {allowed}. It is ignored" in message
    assert Settings.resolve({}, {"OTEL_RECFN_BUFFER_BYTES": text}).buffer_bytes == 8 << 20


def test_of_two_variables_that_contradict_each_other_one_is_ignored() -> None:
    environment = {"OTEL_RECFN_TRACE_SPAN_BUDGET": "10", "OTEL_RECFN_SPAN_BUDGET": "200"}
    assert Settings.resolve({}, environment) == Settings(span_budget=200)
    [message] = wrong_variables(environment)
    assert message.startswith(
        "OTEL_RECFN_TRACE_SPAN_BUDGET=10 is below OTEL_RECFN_SPAN_BUDGET=200; raise"
        " OTEL_RECFN_TRACE_SPAN"
    )


BUDGETS = ("span_budget", "ordinary_span_budget", "trace_span_budget", "spans_per_second")


def budgets(settings: Settings) -> list[Any]:
    return [getattr(settings, name) for name in BUDGETS]


def test_a_detail_stands_for_the_four_budgets() -> None:
    low, normal, every = (
        budgets(Settings.resolve({"detail": word}, {})) for word in ("low", "normal", "all")
    )
    assert normal == budgets(Settings.resolve({}, {}))
    assert low == [each / 5 for each in normal]
    assert every == [None] * len(BUDGETS)
    assert budgets(Settings.resolve({}, {"OTEL_RECFN_DETAIL": "Low"})) == low


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize("number", [7, None])
def test_a_budget_wins_over_the_detail_wherever_each_is_set(name: str, number: int | None) -> None:
    keyword = {name: number}
    variable = {f"OTEL_RECFN_{name.upper()}": str(number)}
    for resolved in (
        Settings.resolve({"detail": "low", **keyword}, {}),
        Settings.resolve({"detail": "low"}, variable),
        Settings.resolve(keyword, {"OTEL_RECFN_DETAIL": "low"}),
        Settings.resolve({}, {"OTEL_RECFN_DETAIL": "low", **variable}),
    ):
        assert budgets(resolved) == budgets(
            dataclasses.replace(Settings.resolve({"detail": "low"}, {}), **{name: number})
        )


def test_unknown_keywords_are_refused_each_with_its_way_out() -> None:
    with pytest.raises(
        SettingError,
        match=(
            r"^chrome_tarce is not .*; did you mean chrome_trace\?. xyz is .*; there are tracer_pro"
        ),
    ):
        Settings.resolve({"chrome_tarce": "trace.json", "xyz": 1}, {})


VARIABLE = "OTEL_RECFN_PYTHON_CALLS"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("true", True),
        ("false", False),
        (
            "include=my_app, my_lib;max_depth=20",
            PythonCalls(include=("my_app", "my_lib"), max_depth=20),
        ),
        (
            "exclude=/opt/lib;min_duration_ns=1000;c_calls=no;call_sites=yes;",
            PythonCalls(
                exclude=("/opt/lib",), min_duration_ns=1000, c_calls=False, call_sites=True
            ),
        ),
    ],
)
def test_what_the_environment_says(text: str, meant: bool | PythonCalls) -> None:
    assert Settings.resolve({}, {VARIABLE: text}).python_calls == meant


@pytest.mark.parametrize(
    "text",
    [
        "depth=3",
        "max_depth=many",
        "max_depth=0",
        "include=",
        "c_calls=perhaps",
        "call_sites=3",
        "yes=",
        "3",
    ],
)
def test_what_the_environment_can_not_say(text: str) -> None:
    [message] = wrong_variables({VARIABLE: text})
    assert re.search(rf"^{VARIABLE}=.*include=my_app,my_lib;max_depth=20. It is ignored", message)


def test_a_keyword_selects_these_calls() -> None:
    some = PythonCalls(include=("my_app",))
    assert (
        select_by_settings(Settings.resolve({"python_calls": some}, {VARIABLE: "true"})).calls
        == some
    )
    assert select_by_settings(Settings.resolve({"python_calls": True}, {})).calls == ALL_CALLS


def test_together_captures_ask_for_what_one_of_them_asks_for() -> None:
    first = PythonCalls(
        include=("a", "b"), exclude=("c", "d"), min_duration_ns=5, max_depth=3, c_calls=False
    )
    assert common_choice([first, first]) == first
    assert common_choice([first, PythonCalls(c_calls=False)]) == ALL_CALLS == common_choice([])
    assert common_choice([PythonCalls(call_sites=True), ALL_CALLS]) == PythonCalls(call_sites=True)
