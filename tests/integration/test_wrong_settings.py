"""Wrong settings are named with what is allowed, and end nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_recfn import OtelRecordFunctionInstrumentor, profile
from otel_recfn.errors import RecfnError, SettingError
from otel_recfn.settings.table import unknown_variables


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("OTEL_RECFN_CHROME_TARCE", "did you mean OTEL_RECFN_CHROME_TRACE?"),
        ("OTEL_RECFN_CACHEDIR", "did you mean OTEL_RECFN_CACHE_DIR?"),
        ("OTEL_RECFN_XYZ", "there are OTEL_RECFN_SCOPES, "),
    ],
)
def test_a_variable_that_is_none_of_ours_is_told_with_the_nearest(variable: str, told: str) -> None:
    [message] = unknown_variables({variable: "1", "OTEL_RECFN_MODULES": "true", "OTHER": "1"})
    assert message.startswith(f"{variable} is not a variable of otel-recfn; {told}")


def test_it_is_logged(
    instrumentor: OtelRecordFunctionInstrumentor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_RECFN_CHROME_TARCE", "trace.json")
    instrumentor.instrument(enabled=False)
    assert "did you mean OTEL_RECFN_CHROME_TRACE?" in caplog.text


@pytest.mark.parametrize("seconds", ["a", None, -1, True, float("inf")])
def test_a_flush_for_what_is_no_time_is_refused(
    instrumentor: OtelRecordFunctionInstrumentor, seconds: Any
) -> None:
    with pytest.raises(
        SettingError, match=r"timeout_s=.* is not allowed; allowed: a number of seconds from 0"
    ):
        instrumentor.flush(seconds)


@pytest.mark.parametrize(
    "ask", ["events", "key_averages", "tree", "modules", "optimizers", "counters"]
)
def test_a_profile_that_never_began_has_nothing_to_tell(ask: str, tmp_path: Path) -> None:
    with pytest.raises(RecfnError, match="this profile has not begun"):
        getattr(profile(), ask)()
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile().export_chrome_trace(tmp_path / "trace.json")
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile(with_stack=True).export_stacks(tmp_path / "stacks.txt")
    with pytest.raises(RecfnError, match="this profile has not begun"):
        profile().lost  # noqa: B018
    assert list(tmp_path.iterdir()) == []
