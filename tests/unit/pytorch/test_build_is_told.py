"""Whoever waits for the first build is told why, and how to have it ahead of time."""

from __future__ import annotations

import logging
import sys

import pytest

from otel_recfn.pytorch import observer_build

pytestmark = pytest.mark.one_python


@pytest.mark.parametrize(("terminal", "level"), [(True, logging.WARNING), (True, logging.INFO), (False, logging.WARNING)])
def test_at_a_terminal_where_the_log_shows_nothing_and_else_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    terminal: bool,
    level: int,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with caplog.at_level(level, logger="otel_recfn"):
        observer_build.tell("building")
    assert capsys.readouterr().err == ("otel-recfn: building\n" if terminal and level == logging.WARNING else "")
    assert [record.getMessage() for record in caplog.records] == (["building"] if level == logging.INFO else [])
