"""A cache that root made is used by others: by a user of a container, who may have neither a
name nor a home.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_compilers import COPYING, use_compiler

from helpers.forked_work import in_child
from otel_recfn.errors import ObserverUnavailable
from otel_recfn.pytorch import observer_build
from otel_recfn.pytorch.observer_build import TORCH_OBSERVER

pytestmark = [
    pytest.mark.one_python,
    pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
    ),
]
NAMELESS = 54321


@pytest.fixture
def open_to_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that others may look into; pytest's own are root's alone."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def cache(open_to_all: Path, torch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a build of root's, for a torch that others can read."""
    shutil.copytree(torch.parent, open_to_all / "site")
    monkeypatch.syspath_prepend(str(open_to_all / "site"))
    monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", str(open_to_all / "cache"))
    (open_to_all / "log").write_text("")
    with monkeypatch.context() as patched:
        use_compiler(patched, open_to_all / "log", COPYING)
        observer_build.build(TORCH_OBSERVER)
    monkeypatch.setenv("CXX", "/nothing")
    return open_to_all / "cache"


def as_nameless(work: Callable[[], None]) -> None:
    def become_and_work() -> None:
        os.setgroups([])
        os.setgid(NAMELESS)
        os.setuid(NAMELESS)
        work()

    in_child(become_and_work)


@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_a_cache_that_only_root_can_write_to_is_used(cache: Path, mode: int) -> None:
    cache.chmod(mode)
    (built,) = cache.glob("*.so")

    def use() -> None:
        assert observer_build.load(TORCH_OBSERVER, Path.read_text) == "library\n"
        assert observer_build.find_built(TORCH_OBSERVER) == built
        with pytest.raises(ObserverUnavailable, match="/nothing"):
            observer_build.build(observer_build.TORCH_CALLBACKS)

    as_nameless(use)


def test_a_cache_that_only_root_can_read_says_so(cache: Path) -> None:
    """Else it would seem to be empty, and a compiler would be asked for."""

    def use() -> None:
        with pytest.raises(
            ObserverUnavailable,
            match=f"by user {NAMELESS}; chmod 755 .*cache.* OTEL_RECFN_CACHE_DIR",
        ):
            observer_build.build(TORCH_OBSERVER)

    as_nameless(use)
