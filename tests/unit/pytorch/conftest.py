"""A torch to be found, and what a compiler makes of its headers, in a directory of the test's
own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_compilers import set_version


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torch to be found, with the older of the two string types."""
    directory = tmp_path / "site" / "torch"
    (directory / "include" / "ATen").mkdir(parents=True)
    (directory / "include" / "ATen" / "record_function.h").write_text("")
    (directory / "lib").mkdir()
    (directory / "lib" / "libc10.so").write_bytes(b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0")
    (directory / "__init__.py").write_text("raise AssertionError('torch must not be imported')")
    set_version(directory, "9.9.0")
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
