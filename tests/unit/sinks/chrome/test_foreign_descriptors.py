"""The program closes descriptors that are not its own, and opens files of its own under the same
numbers.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.batches import make_batch
from helpers.forked_work import in_child
from helpers.timeouts import PATIENCE_S
from helpers.trace_files import names_in
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
from otel_recfn.legacy import RecordProfile
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(
        not os.path.isdir("/proc/self/fd"), reason="descriptors are looked up in /proc"
    ),
]
FOREIGN = b"the program's own\n" * 20_000


def ours(directory: Path) -> set[int]:
    """The descriptors that lead into a directory."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{directory}/"):
                found.add(int(name))
    return found


class Program:
    """Takes our descriptors' numbers for files of its own, and checks them."""

    def __init__(self, tmp_path: Path) -> None:
        self._where = tmp_path / "program"
        self._where.mkdir()
        self._open: dict[int, Path] = {}

    def takes_over(self, descriptors: set[int], flags: int = os.O_RDWR) -> None:
        for number in sorted(descriptors):
            path = self._where / str(len(list(self._where.iterdir())))
            path.write_bytes(FOREIGN)
            opened = os.open(path, flags)
            os.dup2(opened, number)
            os.close(opened)
            self._open[number] = path

    def finds_its_files_as_they_were(self) -> None:
        for number, path in self._open.items():
            assert path.read_bytes() == FOREIGN
            assert os.fstat(number).st_ino == path.stat().st_ino, (
                "our program's descriptor was closed"
            )

    def close(self) -> None:
        for number in self._open:
            with contextlib.suppress(OSError):
                os.close(number)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    program.close()


class TestChromeTrace:
    def test_the_programs_files_stay_as_they_are_and_the_trace_ends(
        self, path: Path, program: Program
    ) -> None:
        writer = TraceWriter(path)
        writer.write(make_batch([{"name": "before"}]))
        program.takes_over(ours(path.parent))
        with pytest.raises(OSError, match="closed a descriptor that is not its own"):
            writer.write(make_batch([{"name": "after"}]))
        writer.close()
        program.finds_its_files_as_they_were()
        assert names_in(path) == ["before"]

    def test_a_program_that_becomes_a_daemon(self, path: Path) -> None:
        in_child(lambda: record_as_a_daemon(path))
        (child_trace,) = path.parent.glob("trace.pid*")
        assert names_in(child_trace) == ["before"]
        assert (path.parent / "own").read_bytes() == FOREIGN


def record_as_a_daemon(path: Path) -> None:
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(chrome_trace=str(path), modules=False)
    with record_function("before"):
        pass
    instrumentor.flush(PATIENCE_S)
    logging.disable()  # the descriptors of its handlers are closed, too
    os.closerange(3, 1024)
    os.chdir("/")
    own = [os.open(path.parent / "own", os.O_CREAT | os.O_RDWR) for _ in range(64)]
    os.write(own[0], FOREIGN)
    with record_function("after"):
        pass
    instrumentor.flush(PATIENCE_S)
    instrumentor.uninstrument()
    for number in own:
        os.close(number)


def test_a_legacy_profile_keeps_no_descriptor_while_it_runs(tmp_path: Path) -> None:
    where = tmp_path / "steps"
    where.mkdir()
    profile = RecordProfile(where / "steps.trace")
    with record_function("step"):
        pass
    # So there is nothing of it that the program could close and open anew.
    assert ours(where) == set()
    profile.close()
    assert "step" in (where / "steps.trace").read_text()
