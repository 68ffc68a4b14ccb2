"""Building the observer, by compilers that are scripts: which builds are kept and used again,
what becomes of damaged ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_compilers import COPYING, FAILING, NEEDS_CPP20, runs, set_version, use_compiler

from helpers.timeouts import PATIENCE_S
from otel_recfn.errors import ObserverUnavailable
from otel_recfn.pytorch import build_cache, observer_build
from otel_recfn.pytorch.observer_build import (
    LIBRARIES,
    TORCH_OBSERVER,
    NativeLibrary,
    TorchInstallation,
)

pytestmark = pytest.mark.one_python


def test_torch_is_found_by_its_files(torch: Path) -> None:
    found = observer_build.find_torch()
    assert (found.directory, found.version, found.git_version, found.cxx11_abi) == (
        torch.resolve(),
        "9.9.0",
        "abc",
        0,
    )
    (torch / "lib" / "libc10.so").write_bytes(
        b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string\0"
    )
    assert observer_build.find_torch().cxx11_abi == 1


def test_a_torch_without_headers_says_so(torch: Path) -> None:
    (torch / "include" / "ATen" / "record_function.h").unlink()
    with pytest.raises(ObserverUnavailable, match="no C\\+\\+ headers; install"):
        observer_build.find_torch()


def test_built_once_then_found(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    assert observer_build.find_built(TORCH_OBSERVER) is None
    first = observer_build.build(TORCH_OBSERVER)
    assert (
        observer_build.build(TORCH_OBSERVER) == first == observer_build.find_built(TORCH_OBSERVER)
    )
    assert first.parent == cache.resolve()
    assert runs(log) == 1
    assert {path.name for path in cache.iterdir()} == {first.name, "lock"}


def test_the_library_is_not_writable_by_the_group_whatever_the_umask(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    before = os.umask(0)
    try:
        built = observer_build.build(TORCH_OBSERVER)
    finally:
        os.umask(before)
    assert built.stat().st_mode & 0o022 == 0


def test_another_torch_gets_another_file_and_the_newest_five_stay(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    built = []
    for minor in range(7):
        set_version(torch, f"9.{minor}")
        built.append(observer_build.build(TORCH_OBSERVER))
        os.utime(built[-1], (minor, minor))
    assert len(set(built)) == 7
    assert sorted(cache.glob("*.so")) == sorted(built[2:])


def test_what_the_compiler_said_is_in_the_error(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, FAILING)
    with pytest.raises(
        ObserverUnavailable,
        match=r"torch 9\.9\.0 failed(.|\n)*otel-recfn build(.|\n)*something is missing",
    ):
        observer_build.build(TORCH_OBSERVER)
    assert runs(log) == len(observer_build.STANDARDS)
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in log.read_text() or observer_build.MACOS
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_headers_that_want_a_later_standard_get_it(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, NEEDS_CPP20)
    assert observer_build.build(TORCH_OBSERVER).exists()
    assert runs(log) == 2


def test_no_compiler(torch: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ObserverUnavailable, match=r"no C\+\+ compiler found.*install.*otel-recfn build"
    ):
        observer_build.build(TORCH_OBSERVER)
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(ObserverUnavailable, match="CXX=no-such-compiler -O1 names no program"):
        observer_build.build(TORCH_OBSERVER)
    monkeypatch.setenv("CXX", "g++ -DNAME='x")
    with pytest.raises(
        ObserverUnavailable,
        match=r"CXX=g\+\+ -DNAME='x is no command: no closing quotation; correct or unset CXX",
    ):
        observer_build.build(TORCH_OBSERVER)


def test_cxx_may_be_a_command_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env c++ -g")
    assert observer_build.find_compiler() == ["env", "c++", "-g"]


def test_each_library_has_a_file_of_its_own(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    built = [observer_build.build(library) for library in observer_build.LIBRARIES]
    assert [path.name.partition("-")[0] for path in built] == ["torch_observer", "torch_callbacks"]
    assert [observer_build.find_built(library) for library in observer_build.LIBRARIES] == built


def test_an_extension_needs_pythons_headers_and_says_so(
    torch: Path, cache: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(
        ObserverUnavailable, match=r"Python's C headers are not in .*; apt-get install"
    ):
        observer_build.build(observer_build.TORCH_CALLBACKS)
    assert observer_build.build(observer_build.TORCH_OBSERVER)


def test_a_library_that_others_could_have_written_is_refused(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    built.chmod(0o775)
    with pytest.raises(ObserverUnavailable, match="writable by others"):
        observer_build.build(TORCH_OBSERVER)
    built.unlink()
    built.symlink_to("/etc/hostname")
    with pytest.raises(ObserverUnavailable, match="not a regular file"):
        observer_build.build(TORCH_OBSERVER)


def test_two_processes_compile_once(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING, seconds=1)
    source = Path(observer_build.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{torch.parent}{os.pathsep}{source}")
    program = (
        "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build;"
        " print(build(TORCH_OBSERVER))"
    )
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert runs(log) == 1


def damaged(content: bytes, how: str) -> bytes:
    half = len(content) // 2
    return {
        "truncated": content[:half],
        "zeros": content[:half] + bytes(len(content) - half),
        "empty": b"",
    }[how]


@pytest.mark.parametrize("how", ["truncated", "zeros", "empty"])
def test_a_damaged_build_is_not_used_but_built_again(
    torch: Path,
    cache: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
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


def test_what_killed_compilers_left_is_removed(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING.replace("sleep {seconds}", "kill -9 $PPID"))
    program = (
        "from otel_recfn.pytorch.observer_build import TORCH_OBSERVER, build; build(TORCH_OBSERVER)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(torch.parent), *sys.path])}
    for _ in range(2):
        assert (
            subprocess.run(
                [sys.executable, "-c", program], env=environment, timeout=PATIENCE_S
            ).returncode
            == -signal.SIGKILL
        )
        assert len([*cache.glob("building-*")]) == 1
    elsewhere = torch / "include"
    (cache / "building-link").symlink_to(elsewhere)
    use_compiler(monkeypatch, log, COPYING)
    built = observer_build.build(TORCH_OBSERVER)
    assert {path.name for path in cache.iterdir()} == {built.name, "lock", "building-link"}
    assert (elsewhere / "ATen").is_dir()


def test_a_build_that_runs_is_left_alone_and_not_waited_for_for_ever(
    torch: Path,
    cache: Path,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The lock may be held by a process that is stopped, or by a forked child of one that was
    killed.
    """
    use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build, "WAIT_SECONDS", 0.2)
    (build_cache.open_directory() / "building-running").mkdir()
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert observer_build.build(TORCH_OBSERVER).exists()
    assert (cache / "building-running").is_dir()
    assert "building without the cache" in caplog.text


def test_what_a_compiler_failed_at_is_not_tried_again_in_the_process(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, FAILING)
    messages = set()
    for _ in range(3):
        with pytest.raises(ObserverUnavailable, match="something is missing") as raised:
            observer_build.build(TORCH_OBSERVER)
        messages.add(str(raised.value))
    assert len(messages) == 1
    assert runs(log) == len(observer_build.STANDARDS)
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -another")
    use = Path(os.environ["CXX"].split()[0])
    use.write_text(COPYING.format(log=log, seconds=0))
    assert observer_build.build(TORCH_OBSERVER).exists()


def test_what_cannot_be_loaded_says_so(
    torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_as_on_another_machine(path: Path) -> None:
        raise OSError("it is of another machine")

    use_compiler(monkeypatch, log, COPYING)
    for _ in range(2):
        with pytest.raises(
            ObserverUnavailable,
            match="it is of another machine; remove it, or set OTEL_RECFN_CACHE_DIR",
        ):
            observer_build.load(TORCH_OBSERVER, fail_as_on_another_machine)
    assert runs(log) == 1


TORCH = TorchInstallation(Path("/torch"), "9.9", "abc", 1)
ELSEWHERE = ("chrome", "drain", "python", "module")


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the C++ sources, which the keys are made of."""
    copied = tmp_path / "native"
    shutil.copytree(observer_build.NATIVE, copied)
    monkeypatch.setattr(observer_build, "NATIVE", copied)
    return copied


def included(native: Path, library: NativeLibrary) -> set[Path]:
    """What the compiler itself says that the library's source includes of ours, whether torch is
    here or not.
    """
    try:
        compiler = observer_build.find_compiler()
    except ObserverUnavailable:
        pytest.skip("needs a C++ compiler")
    command = [*compiler, "-std=c++17", "-MM", "-MG", f"-I{native}", str(library.source)]
    rule = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout
    words = rule.replace("\\\n", " ").split()
    return {Path(word) for word in words if word.startswith(str(native))}


@pytest.mark.parametrize("library", LIBRARIES, ids=[library.name for library in LIBRARIES])
def test_the_key_depends_on_what_is_included_and_on_nothing_else(
    native: Path, library: NativeLibrary
) -> None:
    depends = included(native, library)
    before = observer_build.cache_key(TORCH, library)
    changed = set()
    for path in sorted(native.rglob("*.[ch]pp")):
        text = path.read_bytes()
        path.write_bytes(text + b"// changed\n")
        if observer_build.cache_key(TORCH, library) != before:
            changed.add(path)
        path.write_bytes(text)
    assert changed == depends
    assert library.source in changed
    assert native / "pytorch" / "features.hpp" in changed  # included by what is included
    assert not {path.relative_to(native).parts[0] for path in changed} & {*ELSEWHERE}


def test_the_key_depends_on_torch(native: Path) -> None:
    library = LIBRARIES[0]
    keys = {
        observer_build.cache_key(torch, library)
        for torch in (
            TORCH,
            TorchInstallation(Path("/elsewhere"), "9.9", "abc", 1),
            TorchInstallation(Path("/torch"), "9.10", "abc", 1),
            TorchInstallation(Path("/torch"), "9.9", "abd", 1),
            TorchInstallation(Path("/torch"), "9.9", "abc", 0),
        )
    }
    assert len(keys) == 4  # where it lies is no matter
