"""Which paths a trace is written to, which are refused at once, what becomes of one that is
taken away.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.batches import make_batch
from helpers.forked_work import in_child
from helpers.trace_files import names_in
from otel_recfn import OtelRecordFunctionInstrumentor, profile
from otel_recfn.errors import SettingError
from otel_recfn.legacy import RecordProfile
from otel_recfn.sinks.chrome.writer import TraceWriter

pytestmark = pytest.mark.one_python
NOBODY = 65534
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user, or mount"
)


def as_nobody(work: Callable[[], object]) -> None:
    """In a forked child."""

    def other() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    in_child(other)


class TestRefused:
    @as_root
    def test_a_file_without_write_permission(self, tmp_path: Path) -> None:
        for directory in (tmp_path, *tmp_path.parents[:2]):
            directory.chmod(0o755)
        (tmp_path / "trace.json").write_text("before")

        def work() -> None:
            for name in ("trace.json", "new.json"):
                with pytest.raises(SettingError, match="choose a path that this user can write"):
                    TraceWriter(tmp_path / name)

        as_nobody(work)
        assert os.listdir(tmp_path) == ["trace.json"]
        assert (tmp_path / "trace.json").read_text() == "before"

    @pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
    def test_what_is_no_file(
        self, tmp_path: Path, instrumentor: OtelRecordFunctionInstrumentor, kind: str
    ) -> None:
        path = tmp_path / "trace.json"
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/null")
        with pytest.raises(
            SettingError, match=r"(Is a directory|not a regular file).*choose a path"
        ):
            instrumentor.instrument(chrome_trace=str(path))
        with profile() as prof:
            pass
        with pytest.raises(SettingError, match=r"Is a directory|not a regular file"):
            prof.export_chrome_trace(path)
        assert os.listdir(tmp_path) == ["trace.json"]


class TestTheWay:
    def test_a_relative_path_is_as_of_the_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        writer = TraceWriter("trace.json")
        os.chdir("elsewhere")
        writer.write(make_batch([{"name": "parent"}]))

        def child() -> None:
            os.chdir("/")
            own = writer.after_fork_in_child()
            own.write(make_batch([{"name": "child"}]))
            own.close()

        in_child(child)
        writer.close()
        child_traces = [name for name in os.listdir(tmp_path) if ".pid" in name]
        assert [names_in(tmp_path / name) for name in child_traces] == [["child"]]
        assert names_in(tmp_path / "trace.json") == ["parent"]
        assert os.listdir(tmp_path / "elsewhere") == []

    def test_links_of_ones_own_are_followed_through_directories(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "dir").symlink_to("real")
        (tmp_path / "real" / "trace.json").symlink_to("../dir/deep.json")
        writer = TraceWriter(tmp_path / "dir" / ".." / "dir" / "trace.json")
        writer.write(make_batch([{"name": "op"}]))
        writer.close()
        assert names_in(tmp_path / "real" / "deep.json") == ["op"]
        assert sorted(os.listdir(tmp_path / "real")) == ["deep.json", "trace.json"]


class TestPermissions:
    def test_a_new_file_is_for_its_user_alone(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            writer = TraceWriter(tmp_path / "trace.json")
            writer.write(make_batch([{}]))
            with profile() as prof:
                pass
            prof.export_chrome_trace(tmp_path / "step.json")
            with RecordProfile(tmp_path / "steps.trace"):
                pass
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        finally:
            os.umask(before)
        writer.close()
        assert set(modes.values()) == {0o600}
        assert len(modes) == 3

    def test_what_the_user_chose_stays_and_so_does_a_change_while_it_is_written(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "trace.json"
        path.touch()
        path.chmod(0o640)
        writer = TraceWriter(path)
        for mode in (0o640, 0o644):
            path.chmod(mode)
            for _ in range(3):
                writer.write(make_batch([{}]))
                assert stat.S_IMODE(path.stat().st_mode) == mode
        writer.close()


def test_what_takes_the_place_of_a_trace_stays(path: Path) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([{"name": "before"}]))
    path.rename(path.with_name(f"moved-{path.name}"))
    path.write_text("the user's")
    writer.write(make_batch([{"name": "after"}]))
    writer.close()
    assert path.read_text() == "the user's"
    assert names_in(path.with_name(f"moved-{path.name}")) == ["before", "after"]
