"""Why there is no native part."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from otel_recfn.model.errors import RecorderUnavailable
from otel_recfn.support import native_part


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What setup.py would have noted, where the native part is missing."""
    monkeypatch.setitem(sys.modules, "otel_recfn._native", None)
    monkeypatch.setattr(native_part, "BUILD_NOTE", tmp_path / "native_build.json")
    return native_part.BUILD_NOTE


def test_what_failed_when_it_was_built_is_told(note: Path) -> None:
    note.write_text(json.dumps({"built": False, "reason": "CompileError: no g++"}))
    with pytest.raises(RecorderUnavailable, match=r"CompileError: no g\+\+.*apt-get install g\+\+"):
        native_part.native_part()


@pytest.mark.parametrize("noted", [None, "not json", '{"built": true, "reason": ""}'])
def test_without_a_note_the_import_says_why(note: Path, noted: str | None) -> None:
    if noted is not None:
        note.write_text(noted)
    with pytest.raises(RecorderUnavailable, match="_native"):
        native_part.native_part()
