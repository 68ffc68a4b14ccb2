"""The text of an exception, whatever the exception does."""

from __future__ import annotations

import subprocess

import pytest

from otel_recfn.support.failures import MAX_CHARACTERS, error_text, is_failure


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class HostileType(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__module__", "__qualname__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Unnameable(Exception, metaclass=HostileType):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("no"), "ValueError: no"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (subprocess.SubprocessError("x"), "subprocess.SubprocessError: x"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (Hostile(), f"{__name__}.Hostile: <message unavailable: its __str__ failed>"),
        (Unnameable("x"), "Exception: x"),
    ],
)
def test_error_text(error: BaseException, text: str) -> None:
    assert error_text(error) == text


class Odd(SystemExit):
    """Says of itself what it isn't."""

    __class__ = GeneratorExit  # type: ignore[assignment]
    code = property(lambda _self: 1 / 0)  # type: ignore[assignment]


def test_an_exception_is_not_asked_whether_it_is_a_failure() -> None:
    assert [is_failure(Odd(code)) for code in (None, 0, 1)] == [False, False, True]
    assert is_failure(Unnameable("x"))


def test_a_long_message_is_cut() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == MAX_CHARACTERS
