"""Builds that are kept: which are used again, by whom, and what becomes of damaged ones and of what killed compilers left."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_compilers import COPYING, FAILING, runs, use_compiler

from otel_recfn.model.errors import CacheUnsafe, ObserverUnavailable
from otel_recfn.pytorch import build_cache, observer_build
from otel_recfn.pytorch.observer_build import TORCH_OBSERVER
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python


def test_a_library_that_others_could_have_written_is_refused(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    built.chmod(0o775)
    with pytest.raises(CacheUnsafe, match="writable by others"):
        observer_build.build(TORCH_OBSERVER)
    built.unlink()
    built.symlink_to("/etc/hostname")
    with pytest.raises(CacheUnsafe, match="not a regular file"):
        observer_build.build(TORCH_OBSERVER)


def test_two_processes_compile_once(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, COPYING, seconds=1)
    source = Path(observer_build.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{torch.parent}{os.pathsep}{source}")
    program = "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build; print(build(TORCH_OBSERVER))"
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert runs(log) == 1


def damaged(content: bytes, how: str) -> bytes:
    half = len(content) // 2
    return {"truncated": content[:half], "zeros": content[:half] + bytes(len(content) - half), "empty": b""}[how]


@pytest.mark.parametrize("how", ["truncated", "zeros", "empty"])
def test_a_damaged_build_is_not_used_but_built_again(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    for library in observer_build.LIBRARIES:
        built = observer_build.build(library)
        content = built.read_bytes()
        built.write_bytes(damaged(content, how))
        assert observer_build.find_built(library) is None
        assert observer_build.build(library) == built
        assert built.read_bytes() == content
    assert "is damaged and is not loaded" in caplog.text
    assert runs(log) == 4


def test_a_damaged_build_that_cannot_be_built_again_says_so(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    observer_build.build(TORCH_OBSERVER).write_bytes(b"")
    use_compiler(monkeypatch, log, FAILING)
    with pytest.raises(ObserverUnavailable, match="something is missing"):
        observer_build.build(TORCH_OBSERVER)


def test_what_another_compiler_made_of_the_same_takes_the_place_of_the_earlier(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    first = observer_build.build(TORCH_OBSERVER)
    use_compiler(monkeypatch, log, COPYING.replace("echo library", "echo other"))
    second = observer_build.build(TORCH_OBSERVER, again=True)
    assert second != first
    assert [*cache.glob("*.so")] == [second] == [observer_build.find_built(TORCH_OBSERVER)]


def test_what_killed_compilers_left_is_removed(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, COPYING.replace("sleep {seconds}", "kill -9 $PPID"))
    program = "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build; build(TORCH_OBSERVER)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(torch.parent), *sys.path])}
    for _ in range(2):
        assert (
            subprocess.run([sys.executable, "-c", program], env=environment, timeout=PATIENCE_S).returncode == -signal.SIGKILL
        )
        assert len([*cache.glob("building-*")]) == 1
    elsewhere = torch / "include"
    (cache / "building-link").symlink_to(elsewhere)
    use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    assert {path.name for path in cache.iterdir()} == {built.name, "lock", "building-link"}
    assert (elsewhere / "ATen").is_dir()


def test_a_build_that_runs_is_left_alone_and_not_waited_for_for_ever(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock may be held by a process that is stopped, or by a forked child of one that was killed."""
    use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build, "WAIT_SECONDS", 0.2)
    (build_cache.open_directory() / "building-running").mkdir()
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert observer_build.build(TORCH_OBSERVER).exists()
    assert (cache / "building-running").is_dir()
    assert "building without it" in caplog.text


def test_what_a_compiler_failed_at_is_not_tried_again_in_the_process(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, FAILING)
    told = set()
    for _ in range(3):
        with pytest.raises(ObserverUnavailable, match="something is missing") as raised:
            observer_build.build(TORCH_OBSERVER)
        told.add(str(raised.value))
    assert len(told) == 1
    assert runs(log) == len(observer_build.STANDARDS)
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -another")
    use = Path(os.environ["CXX"].split()[0])
    use.write_text(COPYING.format(log=log, seconds=0))
    assert observer_build.build(TORCH_OBSERVER).exists()


def open_library(path: Path) -> str:
    text = path.read_text()
    if text != "library\n":
        raise OSError(f"{path} is of another machine")
    return text


def test_what_cannot_be_loaded_is_built_anew(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, COPYING.replace("echo library", "echo other"))
    observer_build.build(TORCH_OBSERVER)
    use_compiler(monkeypatch, log, COPYING)
    for _ in range(2):
        assert observer_build.load(TORCH_OBSERVER, open_library) == "library\n"
    assert runs(log) == 2
    assert len([*cache.glob("*.so")]) == 1
