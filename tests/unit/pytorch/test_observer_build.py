"""Building the torch observer, with compilers that are shell scripts and a torch that is three files."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from otel_recfn.pytorch import cpp_compiler, observer_build, private_cache, torch_installation
from otel_recfn.pytorch.observer_build import TORCH_OBSERVER
from otel_recfn.pytorch.private_cache import CacheUnsafe
from otel_recfn.pytorch.unavailable import ObserverUnavailable
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

COPYING = """#!/bin/sh
echo run >> "{log}"
sleep {seconds}
while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done
echo library > "$out"
"""
FAILING = """#!/bin/sh
echo "$@" >> "{log}"
echo "fatal error: something is missing" >&2
exit 1
"""
NEEDS_CPP20 = """#!/bin/sh
echo run >> "{log}"
case "$*" in *c++17*) echo "error: strong_ordering is not a type" >&2; exit 1;; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out="$2"; shift; done
echo library > "$out"
"""


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch to be found, with the older of the two string types."""
    directory = tmp_path / "site" / "torch"
    (directory / "include" / "ATen").mkdir(parents=True)
    (directory / "include" / "ATen" / "record_function.h").write_text("")
    (directory / "lib").mkdir()
    (directory / "lib" / "libc10.so").write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0")
    (directory / "__init__.py").write_text("raise AssertionError('torch must not be imported')")
    _set_version(directory, "9.9.0")
    monkeypatch.syspath_prepend(str(directory.parent))
    for name in [name for name in sys.modules if name == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the compiler was asked, a line per run."""
    path = tmp_path / "log"
    path.write_text("")
    return path


def _set_version(torch: Path, version: str) -> None:
    text = f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = None\ngit_version = 'abc'\n"
    (torch / "version.py").write_text(text)


def _use_compiler(monkeypatch: pytest.MonkeyPatch, log: Path, text: str, seconds: float = 0) -> None:
    script = log.parent / "compiler"
    script.write_text(text.format(log=log, seconds=seconds))
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))


def _runs(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_torch_is_found_by_its_files(torch: Path) -> None:
    found = torch_installation.find_torch()
    assert (found.directory, found.version, found.git_version, found.cxx11_abi) == (torch.resolve(), "9.9.0", "abc", 0)
    (torch / "lib" / "libc10.so").write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string\0")
    assert torch_installation.find_torch().cxx11_abi == 1


def test_a_torch_without_headers_says_so(torch: Path) -> None:
    (torch / "include" / "ATen" / "record_function.h").unlink()
    with pytest.raises(ObserverUnavailable, match="no C\\+\\+ headers; install"):
        torch_installation.find_torch()


def test_built_once_then_found(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    assert observer_build.find_built(TORCH_OBSERVER) is None
    first = observer_build.build(TORCH_OBSERVER)
    assert observer_build.build(TORCH_OBSERVER) == first == observer_build.find_built(TORCH_OBSERVER)
    assert first.parent == cache.resolve()
    assert _runs(log) == 1
    assert observer_build.build(TORCH_OBSERVER, again=True) == first
    assert _runs(log) == 2
    assert {path.name for path in cache.iterdir()} == {first.name, "lock"}


def test_the_library_is_not_writable_by_the_group_whatever_the_umask(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    before = os.umask(0)
    try:
        built = observer_build.build(TORCH_OBSERVER)
    finally:
        os.umask(before)
    assert built.stat().st_mode & 0o022 == 0


def test_another_torch_gets_another_file_and_the_newest_five_stay(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    built = []
    for minor in range(7):
        _set_version(torch, f"9.{minor}")
        built.append(observer_build.build(TORCH_OBSERVER))
        os.utime(built[-1], (minor, minor))
    assert len(set(built)) == 7
    assert sorted(cache.glob("*.so")) == sorted(built[2:])


def test_what_the_compiler_said_is_in_the_error(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_compiler(monkeypatch, log, FAILING)
    with pytest.raises(ObserverUnavailable, match=r"torch 9\.9\.0 failed(.|\n)*otel-recfn build(.|\n)*something is missing"):
        observer_build.build(TORCH_OBSERVER)
    assert _runs(log) == len(observer_build.STANDARDS)
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in log.read_text() or cpp_compiler.MACOS
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_headers_that_want_a_later_standard_get_it(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, NEEDS_CPP20)
    assert observer_build.build(TORCH_OBSERVER).exists()
    assert _runs(log) == 2


def test_no_compiler(torch: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ObserverUnavailable, match=r"no C\+\+ compiler found.*install.*otel-recfn build"):
        observer_build.build(TORCH_OBSERVER)
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(ObserverUnavailable, match="CXX=no-such-compiler -O1 names no program"):
        observer_build.build(TORCH_OBSERVER)


def test_cxx_may_be_a_command_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env c++ -g")
    assert cpp_compiler.find_compiler() == ["env", "c++", "-g"]


def test_a_library_that_others_could_have_written_is_refused(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    built.chmod(0o775)
    with pytest.raises(CacheUnsafe, match="writable by others"):
        observer_build.build(TORCH_OBSERVER)
    built.unlink()
    built.symlink_to("/etc/hostname")
    with pytest.raises(CacheUnsafe, match="not a regular file"):
        observer_build.build(TORCH_OBSERVER)


def test_two_processes_compile_once(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_compiler(monkeypatch, log, COPYING, seconds=1)
    source = Path(observer_build.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{torch.parent}{os.pathsep}{source}")
    program = "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build; print(build(TORCH_OBSERVER))"
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert _runs(log) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_children_that_are_forked_meanwhile_do_not_keep_the_build_waiting(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING, seconds=0)
    over, children = threading.Event(), []

    def build() -> None:
        for _ in range(20):
            observer_build.build(TORCH_OBSERVER, again=True)
        over.set()

    building = threading.Thread(target=build)
    building.start()
    try:
        until = time.monotonic() + 60
        while not over.wait(0.005) and time.monotonic() < until:
            if len(children) < 200:
                children.append(_child_that_waits())
        assert over.is_set()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        building.join()


def _child_that_waits() -> int:
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    return child


def test_each_library_has_a_file_of_its_own(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    built = [observer_build.build(library) for library in observer_build.LIBRARIES]
    assert [path.name.partition("-")[0] for path in built] == ["torch_observer", "torch_callbacks"]
    assert [observer_build.find_built(library) for library in observer_build.LIBRARIES] == built


def test_an_extension_needs_pythons_headers_and_says_so(
    torch: Path, cache: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(ObserverUnavailable, match=r"Python's C headers are not in .*; apt-get install"):
        observer_build.build(observer_build.TORCH_CALLBACKS)
    assert observer_build.build(observer_build.TORCH_OBSERVER)


def damaged(content: bytes, how: str) -> bytes:
    half = len(content) // 2
    return {"truncated": content[:half], "zeros": content[:half] + bytes(len(content) - half), "empty": b""}[how]


@pytest.mark.parametrize("how", ["truncated", "zeros", "empty"])
def test_a_damaged_build_is_not_used_but_built_again(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    for library in observer_build.LIBRARIES:
        built = observer_build.build(library)
        content = built.read_bytes()
        built.write_bytes(damaged(content, how))
        assert observer_build.find_built(library) is None
        assert observer_build.build(library) == built
        assert built.read_bytes() == content
    assert "is damaged and is not loaded" in caplog.text
    assert _runs(log) == 4


def test_a_damaged_build_that_cannot_be_built_again_says_so(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    observer_build.build(TORCH_OBSERVER).write_bytes(b"")
    _use_compiler(monkeypatch, log, FAILING)
    with pytest.raises(ObserverUnavailable, match="something is missing"):
        observer_build.build(TORCH_OBSERVER)


def test_what_another_compiler_made_of_the_same_takes_the_place_of_the_earlier(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    first = observer_build.build(TORCH_OBSERVER)
    _use_compiler(monkeypatch, log, COPYING.replace("echo library", "echo other"))
    second = observer_build.build(TORCH_OBSERVER, again=True)
    assert second != first
    assert [*cache.glob("*.so")] == [second] == [observer_build.find_built(TORCH_OBSERVER)]


def test_what_killed_compilers_left_is_removed(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_compiler(monkeypatch, log, COPYING.replace("sleep {seconds}", "kill -9 $PPID"))
    program = "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build; build(TORCH_OBSERVER)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(torch.parent), *sys.path])}
    for _ in range(2):
        assert (
            subprocess.run([sys.executable, "-c", program], env=environment, timeout=PATIENCE_S).returncode == -signal.SIGKILL
        )
        assert len([*cache.glob("building-*")]) == 1
    elsewhere = torch / "include"
    (cache / "building-link").symlink_to(elsewhere)
    _use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    assert {path.name for path in cache.iterdir()} == {built.name, "lock", "building-link"}
    assert (elsewhere / "ATen").is_dir()


def test_a_build_that_runs_is_left_alone_and_not_waited_for_for_ever(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock may be held by a process that is stopped, or by a forked child of one that was killed."""
    _use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build, "WAIT_SECONDS", 0.2)
    (private_cache.open_directory() / "building-running").mkdir()
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert observer_build.build(TORCH_OBSERVER).exists()
    assert (cache / "building-running").is_dir()
    assert "building without it" in caplog.text


def test_a_descriptor_that_the_program_took_over_meanwhile_is_left_to_it(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _use_compiler(monkeypatch, log, COPYING)
    own = tmp_path / "own"
    own.write_text("the program's")
    taken = []

    def compile_and_take_over(*arguments: object) -> None:
        compile_as_ever(*arguments)
        for number in os.listdir("/proc/self/fd"):
            if os.path.realpath(f"/proc/self/fd/{number}") == str(cache / "lock"):
                with open(own) as opened:
                    os.dup2(opened.fileno(), int(number))
                taken.append(int(number))

    compile_as_ever = observer_build._compile
    monkeypatch.setattr(observer_build, "_compile", compile_and_take_over)
    observer_build.build(TORCH_OBSERVER)
    [number] = taken
    assert os.read(number, 99) == b"the program's"
    os.close(number)
