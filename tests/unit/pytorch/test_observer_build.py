"""Building the torch observer, with compilers that are shell scripts and a torch that is three files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_compilers import COPYING, FAILING, NEEDS_CPP20, runs, set_version, use_compiler

from otel_recfn.model.errors import ObserverUnavailable
from otel_recfn.pytorch import observer_build
from otel_recfn.pytorch.observer_build import TORCH_OBSERVER

pytestmark = pytest.mark.one_python


def test_torch_is_found_by_its_files(torch: Path) -> None:
    found = observer_build.find_torch()
    assert (found.directory, found.version, found.git_version, found.cxx11_abi) == (torch.resolve(), "9.9.0", "abc", 0)
    (torch / "lib" / "libc10.so").write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string\0")
    assert observer_build.find_torch().cxx11_abi == 1


def test_a_torch_without_headers_says_so(torch: Path) -> None:
    (torch / "include" / "ATen" / "record_function.h").unlink()
    with pytest.raises(ObserverUnavailable, match="no C\\+\\+ headers; install"):
        observer_build.find_torch()


def test_built_once_then_found(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, COPYING)
    assert observer_build.find_built(TORCH_OBSERVER) is None
    first = observer_build.build(TORCH_OBSERVER)
    assert observer_build.build(TORCH_OBSERVER) == first == observer_build.find_built(TORCH_OBSERVER)
    assert first.parent == cache.resolve()
    assert runs(log) == 1
    assert observer_build.build(TORCH_OBSERVER, again=True) == first
    assert runs(log) == 2
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


def test_what_the_compiler_said_is_in_the_error(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, FAILING)
    with pytest.raises(ObserverUnavailable, match=r"torch 9\.9\.0 failed(.|\n)*otel-recfn build(.|\n)*something is missing"):
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
    with pytest.raises(ObserverUnavailable, match=r"no C\+\+ compiler found.*install.*otel-recfn build"):
        observer_build.build(TORCH_OBSERVER)
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(ObserverUnavailable, match="CXX=no-such-compiler -O1 names no program"):
        observer_build.build(TORCH_OBSERVER)


def test_cxx_may_be_a_command_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env c++ -g")
    assert observer_build.find_compiler() == ["env", "c++", "-g"]


def test_each_library_has_a_file_of_its_own(torch: Path, cache: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, log, COPYING)
    built = [observer_build.build(library) for library in observer_build.LIBRARIES]
    assert [path.name.partition("-")[0] for path in built] == ["torch_observer", "torch_callbacks"]
    assert [observer_build.find_built(library) for library in observer_build.LIBRARIES] == built


def test_an_extension_needs_pythons_headers_and_says_so(
    torch: Path, cache: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, log, COPYING)
    monkeypatch.setattr(observer_build.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(ObserverUnavailable, match=r"Python's C headers are not in .*; apt-get install"):
        observer_build.build(observer_build.TORCH_CALLBACKS)
    assert observer_build.build(observer_build.TORCH_OBSERVER)
