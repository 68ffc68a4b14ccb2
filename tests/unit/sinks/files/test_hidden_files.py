"""What killed processes leave: removed by SIGTERM itself, or swept up by the next one that writes the trace."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batches import make_batch
from forked import fork, killed_in_child
from otel_recfn.sinks.chrome.sink import ChromeTraceSink
from otel_recfn.sinks.files import whole_file
from otel_recfn.sinks.files.hidden_files import make_hidden
from otel_recfn.support.own_file import OwnFile
from patience import PATIENCE_S
from trace_files import names_in

pytestmark = pytest.mark.one_python


WRITER = """
import signal, sys, time
from otel_recfn import OtelRecordFunctionInstrumentor, record_function
{before}
instrumentor = OtelRecordFunctionInstrumentor()
instrumentor.instrument(chrome_trace="trace.json", modules=False)
assert signal.getsignal(signal.SIGTERM) == {handler}
with record_function("op"):
    pass
instrumentor.flush(300)
{after}
print("ready", flush=True)
while True:
    time.sleep(0.01)  # short ones: what comes just before a sleep begins, CPython handles only after it
"""


CAUGHT = """
import signal
from otel_recfn.sinks.chrome.sink import ChromeTraceSink

def tell():
    [line] = [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
    print(bool(int(line.split()[1], 16) & 1 << signal.SIGTERM - 1))

tell()
sinks = [ChromeTraceSink(f"{name}.json") for name in "ab"]
for sink in sinks:
    tell()
    sink.close(1.0)
tell()
"""


def writer(directory: Path, before: str = "", handler: str = "signal.SIG_DFL", after: str = "") -> subprocess.Popen[str]:
    """A program that has written something, and goes on."""
    program = WRITER.format(before=before, handler=handler, after=after)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=directory, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def hidden(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory) if name.startswith("."))


class TestSigterm:
    def test_leaves_the_trace_alone_and_ends_the_program_as_ever(self, tmp_path: Path) -> None:
        process = writer(tmp_path)
        assert len(hidden(tmp_path)) == 1
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        assert os.listdir(tmp_path) == ["trace.json"]
        assert names_in(tmp_path / "trace.json") == ["op"]

    def test_needs_no_main_thread_that_comes_back(self, tmp_path: Path) -> None:
        """A program that is stuck in C, holding the GIL, ends as it did without us."""
        process = writer(tmp_path, after="import ctypes; print('ready', flush=True); ctypes.PyDLL(None).sleep(3600)")
        process.terminate()
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        assert os.listdir(tmp_path) == ["trace.json"]

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_a_handler_of_the_programs_is_left_in_place(self, tmp_path: Path, where: str) -> None:
        own = "handler = lambda *_: sys.exit(7); signal.signal(signal.SIGTERM, handler)"
        process = writer(tmp_path, **{where: own}, **({"handler": "handler"} if where == "before" else {}))
        process.terminate()
        assert process.wait(PATIENCE_S) == 7
        assert os.listdir(tmp_path) == ["trace.json"]

    def test_a_program_that_ignores_it_goes_on(self, tmp_path: Path) -> None:
        ignoring, told = "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.raise_signal(signal.SIGTERM)"
        process = writer(tmp_path, ignoring, "signal.SIG_IGN", after=told)
        assert len(hidden(tmp_path)) == 1
        process.kill()
        process.wait(PATIENCE_S)

    def test_children_of_a_fork_remove_their_own(self, tmp_path: Path) -> None:
        """The parent's stays."""
        path = tmp_path / "trace.json"
        sink = ChromeTraceSink(path)
        sink.write(make_batch([{"name": "parent"}]))
        [mine] = hidden(tmp_path)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            own = sink.after_fork_in_child()
            own.write(make_batch([{"name": "child"}]))
            os.write(writing, b"x")
            time.sleep(3600)
            os._exit(1)
        os.read(reading, 1)
        assert len(hidden(tmp_path)) == 2
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        assert hidden(tmp_path) == [mine]
        sink.write(make_batch([{"name": "parent"}]))
        sink.close(1.0)
        assert names_in(path) == ["parent", "parent"]

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="which signals are caught is read in /proc")
    def test_the_default_is_back_when_the_trace_is_closed(self, tmp_path: Path) -> None:
        done = subprocess.run([sys.executable, "-c", CAUGHT], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.stdout.split() == ["False", "True", "True", "False"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace of processes")
    def test_the_first_process_of_a_container_does_not_end_and_keeps_its_files(self, tmp_path: Path) -> None:
        """There SIGTERM's default does nothing."""
        program = WRITER.format(before="import os", handler="signal.SIG_DFL", after="os.kill(1, signal.SIGTERM)")
        command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip("no namespaces here")
        assert len(hidden(tmp_path)) == 1
        process.kill()
        process.wait(PATIENCE_S)


class TestSweeping:
    @pytest.mark.parametrize("exchange", [True, False])
    def test_killed_workers_do_not_pile_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
        """Each worker of a pool that was killed is swept up by the next one, or by the parent's end."""
        if not exchange:
            monkeypatch.setattr(whole_file, "exchange", lambda *_: False)
        parent = ChromeTraceSink(tmp_path / "trace.json")
        parent.write(make_batch([{}]))
        for _ in range(5):
            killed_in_child(lambda: write_twice(parent.after_fork_in_child()))
            assert len(hidden(tmp_path)) <= 2
        parent.write(make_batch([{}]))
        parent.close(1.0)
        assert hidden(tmp_path) == []
        assert len(os.listdir(tmp_path)) == 6
        assert {len(names_in(path)) for path in tmp_path.iterdir()} == {2}

    def test_a_writers_file_stays_while_it_lives(self, tmp_path: Path) -> None:
        first = ChromeTraceSink(tmp_path / "trace.json")
        first.write(make_batch([{}]))
        for _ in range(3):
            ChromeTraceSink(tmp_path / "trace.json").close(1.0)
        first.write(make_batch([{}]))
        first.close(1.0)
        assert first.counters()["reopened"] == 0
        assert len(names_in(tmp_path / "trace.json")) == 2

    def test_nothing_goes_that_may_be_somebody_elses(self, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text("")
        token = "0123456789abcdef"
        kept = {
            ".trace.json.next",  # no name of ours
            f".other.json.{token}.next",  # of another trace
            f".trace.json.{token}.bak",
            f".trace.json.{token[:-1]}.next",
            f"trace.json.{token}.next",
            f".trace.pid12.json.{token}.next",  # whose trace is not there
            f".trace.json.{token[::-1]}.next",  # a directory
            f".trace.json.{token[::-1]}.last",  # a link
        }
        for name in kept:
            (tmp_path / name).write_text("")
        (tmp_path / f".trace.json.{token[::-1]}.next").unlink()
        (tmp_path / f".trace.json.{token[::-1]}.next").mkdir()
        (tmp_path / f".trace.json.{token[::-1]}.last").unlink()
        (tmp_path / f".trace.json.{token[::-1]}.last").symlink_to(elsewhere)
        left_over = [f".trace.json.{token}.next", f".trace.json.{token}.last"]
        for name in left_over:
            (tmp_path / name).write_text("")
        ChromeTraceSink(tmp_path / "trace.json").close(1.0)
        assert set(os.listdir(tmp_path)) == kept | {"trace.json", "elsewhere"}

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
    def test_another_users_stay(self, tmp_path: Path) -> None:
        path = tmp_path / ".trace.json.0123456789abcdef.next"
        path.write_text("")
        os.chown(path, 65534, 65534)
        ChromeTraceSink(tmp_path / "trace.json").close(1.0)
        assert path.exists()

    def test_a_sweeper_that_is_faster_than_the_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has locked the new file, and removes it only after its maker has looked whether it is there."""
        create, sweeping = OwnFile.create, []

        def create_for_a_sweeper(path: Path) -> OwnFile:
            made = create(path)
            if not sweeping:
                sweeping.append(OwnFile(path))
                sweeping[0].lock()
            return made

        monkeypatch.setattr(OwnFile, "create", create_for_a_sweeper)
        path, file = make_hidden(tmp_path / "trace.json")
        [swept] = [tmp_path / name for name in hidden(tmp_path) if sweeping[0].is_at(tmp_path / name)]
        swept.unlink()
        assert file.is_at(path)
        file.close()
        sweeping[0].close()

    def test_a_sweeper_between_making_and_locking(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two processes at once: one makes a hidden file, the other one takes it for left over."""
        children = [fork(lambda: write_and_close_often(tmp_path / "trace.json")) for _ in range(4)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        assert hidden(tmp_path) == []
        assert all(len(names_in(path)) == 2 for path in tmp_path.iterdir())
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


def write_and_close_often(path: Path) -> None:
    for _ in range(60):
        write_twice(sink := ChromeTraceSink(path))
        sink.close(1.0)


def write_twice(sink: ChromeTraceSink) -> None:
    for _ in range(2):
        sink.write(make_batch([{}]))
