"""The table of sources: every source has its line, and what reads the table asks for no source
by its name.
"""

from __future__ import annotations

import pytest

from otel_recfn.model.events import SOURCES, EventSource, SourceTraits, is_call, trace_name

pytestmark = pytest.mark.one_python


def test_every_source_has_its_line() -> None:
    assert list(SOURCES) == list(EventSource)


def test_names_of_calls_are_plain_text() -> None:
    prefixes = [traits.call_prefix for traits in SOURCES.values() if traits.call_prefix is not None]
    assert all(
        prefix.isascii() and prefix.isprintable() and not set(prefix) & set('"\\')
        for prefix in prefixes
    )


@pytest.mark.parametrize(
    ("traits", "name", "expected"),
    [
        (SourceTraits(), "f", ("", False)),
        (SourceTraits(trace_name="Python calls", call_prefix=""), "f", ("Python calls", True)),
        (
            SourceTraits(trace_name="call of {}", call_prefix="py: "),
            "py: {x}",
            ("call of {x}", True),
        ),
        (
            SourceTraits(trace_name="call of {}", call_prefix="py: "),
            "step",
            ("call of step", False),
        ),
    ],
)
def test_a_source_names_its_traces_and_calls(
    monkeypatch: pytest.MonkeyPatch, traits: SourceTraits, name: str, expected: tuple[str, bool]
) -> None:
    monkeypatch.setitem(SOURCES, EventSource.TORCH, traits)
    assert (trace_name(EventSource.TORCH, name), is_call(EventSource.TORCH, name)) == expected
