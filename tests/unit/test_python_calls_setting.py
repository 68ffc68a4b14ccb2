"""``python_calls`` as a keyword and as ``OTEL_RECFN_PYTHON_CALLS``, and what captures ask for together."""

from __future__ import annotations

import pytest

from otel_recfn import PythonCalls
from otel_recfn.model.errors import SettingError
from otel_recfn.model.python_calls import ALL_CALLS, together
from otel_recfn.settings import Settings
from otel_recfn.settings.uses import selected

VARIABLE = "OTEL_RECFN_PYTHON_CALLS"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("true", True),
        ("false", False),
        ("include=my_app, my_lib;max_depth=20", PythonCalls(include=("my_app", "my_lib"), max_depth=20)),
        (
            "exclude=/opt/lib;min_duration_ns=1000;c_calls=no;call_sites=yes;",
            PythonCalls(exclude=("/opt/lib",), min_duration_ns=1000, c_calls=False, call_sites=True),
        ),
    ],
)
def test_what_the_environment_says(text: str, meant: bool | PythonCalls) -> None:
    assert Settings.resolve({}, {VARIABLE: text}).python_calls == meant


@pytest.mark.parametrize(
    "text", ["depth=3", "max_depth=many", "max_depth=0", "include=", "c_calls=perhaps", "call_sites=3", "yes=", "3"]
)
def test_what_the_environment_can_not_say(text: str) -> None:
    with pytest.raises(SettingError, match=rf"^{VARIABLE}=.*include=my_app,my_lib;max_depth=20$"):
        Settings.resolve({}, {VARIABLE: text})


def test_a_keyword_selects_these_calls() -> None:
    some = PythonCalls(include=("my_app",))
    assert selected(Settings.resolve({"python_calls": some}, {VARIABLE: "true"})).calls == some
    assert selected(Settings.resolve({"python_calls": True}, {})).calls == ALL_CALLS


def test_together_captures_ask_for_what_one_of_them_asks_for() -> None:
    first = PythonCalls(include=("a", "b"), exclude=("c", "d"), min_duration_ns=5, max_depth=3, c_calls=False)
    second = PythonCalls(include=("b", "e"), exclude=("d",), min_duration_ns=7, max_depth=9, c_calls=False)
    assert together([first, second]) == PythonCalls(("a", "b", "e"), ("d",), 5, 9, c_calls=False)
    assert together([first, ALL_CALLS]) == ALL_CALLS == together([])
    assert together([PythonCalls(call_sites=True), ALL_CALLS]) == PythonCalls(call_sites=True)
