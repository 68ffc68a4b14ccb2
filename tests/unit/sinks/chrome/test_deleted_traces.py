"""A trace that is deleted or overwritten while it is recorded is told of and counted; another
file goes on.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from helpers.timeouts import PATIENCE_S
from helpers.trace_files import names_in, read_trace
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.support.processes import run_id

pytestmark = pytest.mark.one_python
THEIRS = "the user's"


@pytest.fixture
def instrumentor(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor
) -> OtelRecordFunctionInstrumentor:
    """Records to the path."""
    instrumentor.instrument(chrome_trace=path, tracer_provider=TracerProvider(), modules=False)
    return instrumentor


def record(instrumentor: OtelRecordFunctionInstrumentor, *names: str) -> None:
    """Record ranges, and have them written."""
    for name in names:
        with record_function(name):
            pass
    assert instrumentor.flush(PATIENCE_S)


def lost(instrumentor: OtelRecordFunctionInstrumentor) -> int:
    """How many rows the trace lacks."""
    return instrumentor.counters()["chrome_trace.dropped.error"]


def deletion_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the file."""
    return [message for message in caplog.messages if "was deleted or overwritten" in message]


def path_with_pid(path: Path) -> Path:
    """The name that this process takes if the name is in use."""
    return path.with_name(path.name.replace("trace", f"trace.pid{os.getpid()}"))


def test_a_deleted_trace_goes_on_in_a_new_file_of_its_name(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    record(instrumentor, "one", "two")
    path.unlink()
    record(instrumentor, "three")
    assert names_in(path) == ["three"]
    assert lost(instrumentor) == 2
    path.unlink()
    record(instrumentor, "four")
    instrumentor.uninstrument()
    assert names_in(path) == ["four"]
    assert read_trace(path)["lost"] == lost(instrumentor) == 3
    assert deletion_messages(caplog) == [
        f"{path} was deleted or overwritten while it was written: its 2 events are lost, and"
        f" counted; later ones are in {path}"
    ]
    assert (
        "otel-recfn lost chrome_trace.dropped.error=3: the file could not be written, or was"
        " deleted" in caplog.text
    )


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text(THEIRS)
    other.replace(path)


OTHERS: dict[str, Callable[[Path], object]] = {
    "replaced": _replace,
    "overwritten": lambda path: path.write_text(THEIRS),
    "overwritten by as many bytes": lambda path: path.write_text(THEIRS.ljust(path.stat().st_size)),
    "deleted and made again": lambda path: (path.unlink(), path.write_text(THEIRS)),
}


@pytest.mark.parametrize("take", OTHERS.values(), ids=OTHERS)
def test_what_takes_its_place_stays_and_recording_goes_on_beside(
    path: Path,
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    take: Callable[[Path], object],
) -> None:
    record(instrumentor, "one")
    take(path)
    record(instrumentor, "two")
    instrumentor.uninstrument()
    assert path.read_text().rstrip() == THEIRS
    assert names_in(path_with_pid(path)) == ["two"]
    assert read_trace(path_with_pid(path))["lost"] == lost(instrumentor) == 1
    (message,) = deletion_messages(caplog)
    assert message.endswith(f"later ones are in {path_with_pid(path)}")


def test_a_trace_that_is_deleted_last_of_all_says_what_it_lacks(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    record(instrumentor, "one")
    path.unlink()
    instrumentor.uninstrument()
    assert names_in(path) == []
    assert read_trace(path)["lost"] == lost(instrumentor) == 1
    assert len(deletion_messages(caplog)) == 1


def test_a_folder_that_is_deleted_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "trace.json"
    path.parent.mkdir()
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(chrome_trace=path, tracer_provider=TracerProvider(), modules=False)
    record(instrumentor, "one")
    shutil.rmtree(path.parent)
    record(instrumentor, "two")
    record(instrumentor, "three")
    path.parent.mkdir()
    record(instrumentor, "four")
    instrumentor.uninstrument()
    assert names_in(path) == ["four"]
    assert read_trace(path)["lost"] == lost(instrumentor) == 3
    assert len(deletion_messages(caplog)) == 1
    assert caplog.text.count("No such file or directory") == 1


@pytest.mark.parametrize("path", [".json"], indirect=True)
def test_an_older_trace_of_the_same_size_that_is_copied_over_one(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    """Each run has an id of its own, as long as others."""
    record(instrumentor, "one")
    older = path.read_text().replace(run_id(), "0" * len(run_id()))
    path.write_text(older)
    record(instrumentor, "two")
    assert path.read_text() == older
    assert names_in(path_with_pid(path)) == ["two"]
    assert lost(instrumentor) == 1
    assert len(deletion_messages(caplog)) == 1


@pytest.mark.parametrize("name", [".nfs00000000012345", ".fuse_hidden0000001200000001"])
def test_a_deleted_file_of_some_file_systems_has_a_name_yet(
    path: Path,
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """They rename a file that is deleted while it is open, and delete it as it is closed."""
    record(instrumentor, "one")
    path.rename(path.with_name(name))
    record(instrumentor, "two")
    assert names_in(path) == ["two"]
    assert lost(instrumentor) == 1
    assert len(deletion_messages(caplog)) == 1


def test_a_file_that_another_machine_has_deleted(
    path: Path,
    instrumentor: OtelRecordFunctionInstrumentor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On NFS its descriptor is stale, and closed."""
    fstat = os.fstat
    file_status = path.stat()

    def stale(fd: int) -> os.stat_result:
        status = fstat(fd)
        if (status.st_dev, status.st_ino) == (file_status.st_dev, file_status.st_ino):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return status

    record(instrumentor, "one")
    moved = path.rename(path.with_name("on the other machine"))
    monkeypatch.setattr(os, "fstat", stale)
    record(instrumentor, "two")
    assert names_in(path) == ["two"]
    assert lost(instrumentor) == 1
    assert len(deletion_messages(caplog)) == 1
    links = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert str(moved) not in links


def test_a_trace_that_is_moved_goes_on_where_it_is(
    path: Path, instrumentor: OtelRecordFunctionInstrumentor, caplog: pytest.LogCaptureFixture
) -> None:
    record(instrumentor, "one")
    moved = path.rename(path.with_name(f"moved-{path.name}"))
    with caplog.at_level(logging.DEBUG, "otel_recfn"):
        record(instrumentor, "two")
    instrumentor.uninstrument()
    assert names_in(moved) == ["one", "two"]
    assert lost(instrumentor) == 0
    assert not deletion_messages(caplog)
