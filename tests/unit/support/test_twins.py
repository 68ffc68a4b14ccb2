"""Which of the twins is taken."""

from __future__ import annotations

import pytest

from otel_recfn.support.twins import VARIABLE, native_twin


def there() -> str:
    return "native"


def not_there() -> str:
    raise ImportError("no compiler")


@pytest.mark.parametrize("asked", ["", "auto", " Native "])
def test_the_native_twin_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(VARIABLE, asked)
    assert native_twin(there, "python") == "native"
    assert native_twin(not_there, "python") == "python"


def test_pythons_twin_is_taken_where_the_user_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "Python")
    assert native_twin(there, "python") == "python"
