"""Another user, who may write in the same directory, can lead us to no file but our own."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batches import make_batch
from otel_recfn import profile
from otel_recfn.errors import SettingError
from otel_recfn.legacy import RecordProfile
from otel_recfn.sinks.chrome.writer import TraceWriter
from otel_recfn.sinks.growing_file import GrowingFile

NOBODY = 65534
VICTIM = "the victim's"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")

Write = Callable[[Path], None]


def by_sink(path: Path) -> None:
    writer = TraceWriter(path)
    writer.write(make_batch([{"name": "op"}]))
    writer.write(make_batch([{"name": "op"}]))
    writer.close()


def by_export(path: Path) -> None:
    with profile() as prof:
        pass
    prof.export_chrome_trace(path)


def by_legacy_profile(path: Path) -> None:
    with RecordProfile(path):
        pass


@pytest.fixture(params=[by_sink, by_export, by_legacy_profile])
def write(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory like /tmp."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.json"
    path.write_text(VICTIM)
    return path


def plant_link(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("link", "leads_to", "trace"),
    [
        ("trace.json", "victim.json", "trace.json"),
        ("trace.json", "new.json", "trace.json"),
        ("program", "", "program/victim.json"),
    ],
    ids=["to a file", "to a free name", "to a directory"],
)
def test_another_users_link(shared: Path, victim: Path, write: Write, link: str, leads_to: str, trace: str) -> None:
    plant_link(shared / link, victim.parent / leads_to)
    with pytest.raises((SettingError, OSError), match=r"symbolic link of user 65534; give the path that it leads to"):
        write(shared / trace)
    assert victim.read_text() == VICTIM
    assert not (victim.parent / "new.json").exists()


def test_another_users_file(shared: Path, write: Write) -> None:
    planted = shared / "trace.json"
    planted.write_text(VICTIM)
    os.chown(planted, NOBODY, NOBODY)
    with pytest.raises((SettingError, OSError), match="it belongs to user 65534"):
        write(planted)
    assert planted.read_text() == VICTIM


def test_a_link_at_the_hidden_name(shared: Path, victim: Path) -> None:
    """It was read from the directory, which has no sticky bit."""
    shared.chmod(0o777)
    file = GrowingFile(shared / "trace.json")
    [hidden] = shared.iterdir()
    hidden.unlink()
    plant_link(hidden, victim)
    with pytest.raises(OSError, match="was removed or replaced"):
        file.show(b"[]")
    file.close()
    assert victim.read_text() == VICTIM
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644


def test_a_link_of_ones_own_in_a_shared_directory_is_followed(shared: Path, tmp_path: Path, write: Write) -> None:
    (shared / "trace.json").symlink_to(tmp_path / "real.json")
    write(shared / "trace.json")
    json.loads((tmp_path / "real.json").read_text())
    assert (shared / "trace.json").is_symlink()
