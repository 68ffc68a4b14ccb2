"""A library is compiled anew when something that it includes has changed, and not when something else has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from otel_recfn.model.errors import ObserverUnavailable
from otel_recfn.pytorch import observer_build
from otel_recfn.pytorch.observer_build import LIBRARIES, Library, TorchInstallation
from patience import PATIENCE_S

pytestmark = pytest.mark.one_python

TORCH = TorchInstallation(Path("/torch"), "9.9", "abc", 1)
ELSEWHERE = ("chrome", "drain", "python", "module")


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the C++ sources, which the keys are made of."""
    copied = tmp_path / "native"
    shutil.copytree(observer_build.NATIVE, copied)
    monkeypatch.setattr(observer_build, "NATIVE", copied)
    return copied


def included(native: Path, library: Library) -> set[Path]:
    """What the compiler itself says that the library's source includes of ours, whether torch is here or not."""
    try:
        compiler = observer_build.find_compiler()
    except ObserverUnavailable:
        pytest.skip("needs a C++ compiler")
    command = [*compiler, "-std=c++17", "-MM", "-MG", f"-I{native}", str(library.source)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    words = rule.replace("\\\n", " ").split()
    return {Path(word) for word in words if word.startswith(str(native))}


@pytest.mark.parametrize("library", LIBRARIES, ids=[library.name for library in LIBRARIES])
def test_the_key_depends_on_what_is_included_and_on_nothing_else(native: Path, library: Library) -> None:
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
