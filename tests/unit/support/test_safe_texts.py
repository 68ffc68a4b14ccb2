"""Endpoints and somebody else's texts for logs."""

from __future__ import annotations

import pytest

from otel_recfn.support.safe_texts import MAX_SHOWN_NAMES, safe_text, secrets_of


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://user:password@host:4317/v1/traces?key=secret#part", "http://host:4317/v1/traces"),
        ("user:password@host:4317", "host:4317"),
        ("http://us@er:pa/ss?w@host", "http://host"),
        ("http://user:pass word'@host", "http://host"),
        ("http://u:p@h?k", "http://h"),
        ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
        ("localhost:4317", "localhost:4317"),
        ("", ""),
    ],
)
def test_endpoints(endpoint: str, said: str) -> None:
    assert safe_text(endpoint, secrets_of(endpoint)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("two\r\nlines\x1b[0m", "two lines [0m"),
        ("a \ud800 surrogate", "a surrogate"),
        ("x" * 1000, "x" * (MAX_SHOWN_NAMES - 3) + "..."),
        (None, "None"),
        ("'https://u:p@h/x?k=v' (and http://h/?k)", "'https://h/x (and http://h/"),
    ],
)
def test_texts_of_others(text: object, said: str) -> None:
    assert safe_text(text) == said


def test_a_long_text_is_read_in_time_of_its_length() -> None:
    for long in ("@" * 1_000_000, "http://" * 200_000, "?" * 1_000_000, " a@" * 300_000):
        assert len(safe_text(long)) <= MAX_SHOWN_NAMES
