"""RecordProfile: a trace of a block, to a path or a stream; leaving it never raises."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

import pytest

from otel_recfn import record_function
from otel_recfn.legacy import ProfilerConfig, ProfilerError, ProfilerState, RecordProfile, profiler_enabled
from otel_recfn.legacy.profiler import disable_profiler_legacy, enable_profiler_legacy


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("no space left on device")


def profiled_into(out: str | Path | io.StringIO) -> None:
    with RecordProfile(out), record_function("step"), record_function('load "batch"'):
        pass


def test_to_a_path(tmp_path: Path) -> None:
    profiled_into(tmp_path / "steps.trace")
    events = json.loads((tmp_path / "steps.trace").read_text())
    assert [event["name"] for event in events] == ['load "batch"', "step"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in events)


def test_to_a_stream_that_stays_open() -> None:
    out = io.StringIO()
    profiled_into(out)
    assert len(json.loads(out.getvalue())) == 2


def test_closed_by_hand_once() -> None:
    out = io.StringIO()
    profile = RecordProfile(out)
    assert profiler_enabled()
    profile.close()
    profile.close()
    assert not profiler_enabled()
    assert out.getvalue() == "[\n]\n"


def test_dropped_it_ends_and_writes() -> None:
    out = io.StringIO()
    profile = RecordProfile(out)
    with record_function("step"):
        pass
    del profile
    assert not profiler_enabled()
    assert [event["name"] for event in json.loads(out.getvalue())] == ["step"]
    profiled_into(io.StringIO())  # another one may begin


def test_dropped_in_another_thread_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    held = [RecordProfile(io.StringIO())]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert "dropped in another thread" in caplog.text
    disable_profiler_legacy()


def test_a_stream_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    profiled_into(FullDisk())
    assert "the profile could not be written" in caplog.text
    assert "no space left on device" in caplog.text
    assert not profiler_enabled()


def test_a_profiler_that_somebody_disabled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with RecordProfile(io.StringIO()):
        disable_profiler_legacy()
    assert "Can't disable profiler when it's not running" in caplog.text


def test_the_blocks_own_error_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RecordProfile(tmp_path / "steps.trace"), record_function("step"):
        raise ZeroDivisionError
    assert [event["name"] for event in json.loads((tmp_path / "steps.trace").read_text())] == ["step"]


def test_a_path_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordProfile(tmp_path / "missing" / "steps.trace")
    assert not profiler_enabled()


def test_a_second_one_in_the_thread_leaves_the_first_its_file(tmp_path: Path) -> None:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    try:
        with pytest.raises(ProfilerError, match="already enabled"):
            RecordProfile(tmp_path / "steps.trace")
        assert not (tmp_path / "steps.trace").exists()
    finally:
        disable_profiler_legacy()
