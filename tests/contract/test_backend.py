"""The choice between the recorders, and its reason."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from otel_recfn.model.errors import SettingError
from otel_recfn.recording import backend
from otel_recfn.recording.python.recorder import PythonRecorder
from patience import PATIENCE_S


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No choice made yet; it is taken back after the test."""
    monkeypatch.setattr(backend, "_chosen", None)
    monkeypatch.setattr(backend, "BUILD_NOTE", tmp_path / "native_build.json")
    monkeypatch.delenv(backend.VARIABLE, raising=False)


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "otel_recfn.recording.native_recorder", None)


def test_python_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "python")
    chosen = backend.choose()
    assert isinstance(chosen.recorder, PythonRecorder)
    assert (chosen.kind, chosen.reason) == ("python", "OTEL_RECFN_RECORDER=python asks for the Python twin")


def test_one_recorder_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "python")
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(backend.recorder())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(found) == 8
    assert {id(each) for each in found} == {id(backend.choose().recorder)}


@pytest.mark.usefixtures("without_native")
def test_the_twin_serves_where_nothing_was_built() -> None:
    backend.BUILD_NOTE.write_text(json.dumps({"built": False, "reason": "CompileError: no g++"}))
    chosen = backend.choose()
    assert chosen.kind == "python"
    assert "CompileError: no g++" in chosen.reason
    assert "apt-get install g++" in chosen.reason


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("note", [None, "not json", '{"built": true, "reason": ""}'])
def test_without_a_note_the_import_says_why(note: str | None) -> None:
    if note is not None:
        backend.BUILD_NOTE.write_text(note)
    assert "native_recorder" in backend.choose().reason


@pytest.mark.usefixtures("without_native")
def test_native_when_asked_for_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "native")
    with pytest.raises(SettingError, match=r"OTEL_RECFN_RECORDER=native, but .* install a C\+\+ compiler"):
        backend.choose()


def test_a_wrong_value_names_the_allowed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "rust")
    with pytest.raises(SettingError, match=r"OTEL_RECFN_RECORDER='rust' .* auto, native, python"):
        backend.choose()
    monkeypatch.setenv(backend.VARIABLE, "python")
    assert backend.choose().kind == "python"
