"""Only what this user or root alone can write is loaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from otel_recfn.errors import ObserverUnavailable
from otel_recfn.pytorch import build_cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", str(tmp_path / "made" / "cache"))
    return tmp_path / "made" / "cache"


def test_it_is_made_for_its_owner_alone_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        opened = build_cache.open_directory()
    finally:
        os.umask(before)
    assert opened == cache.parent.resolve() / cache.name
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_RECFN_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert build_cache.chosen_directory() == Path("/var/xdg/otel-recfn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert build_cache.chosen_directory() == Path("/home/someone/.cache/otel-recfn")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_cache_that_others_can_write_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(ObserverUnavailable, match=r"writable by others.*OTEL_RECFN_CACHE_DIR"):
        build_cache.open_directory()


def test_a_cache_that_others_can_read_in_a_sticky_directory_is_fine(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    cache.parent.chmod(0o1777)
    assert build_cache.open_directory().name == cache.name


@pytest.mark.parametrize("other", ["file", "symlink to a safe directory"])
def test_what_is_no_directory_is_refused(cache: Path, tmp_path: Path, other: str) -> None:
    cache.parent.mkdir()
    if other == "file":
        cache.write_text("")
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ObserverUnavailable, match="not a real directory"):
        build_cache.open_directory()


def test_a_symlink_above_is_followed_and_what_it_leads_to_is_checked(
    cache: Path, tmp_path: Path
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    cache.parent.symlink_to(open_to_all)
    assert build_cache.open_directory() == open_to_all.resolve() / cache.name
    open_to_all.chmod(0o777)
    with pytest.raises(ObserverUnavailable, match="directory above the cache"):
        build_cache.open_directory()


def test_a_place_that_cannot_be_made_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RECFN_CACHE_DIR", "/proc/otel-recfn")
    with pytest.raises(ObserverUnavailable, match=r"cannot be used.*OTEL_RECFN_CACHE_DIR"):
        build_cache.open_directory()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", ["cache", "above", "file"])
def test_what_belongs_to_somebody_else_is_refused(cache: Path, which: str) -> None:
    cache.mkdir(parents=True, mode=0o700)
    built = cache / "library.so"
    built.write_text("")
    os.chown({"cache": cache, "above": cache.parent, "file": built}[which], 12345, -1)
    with pytest.raises(ObserverUnavailable, match="belongs to user 12345"):
        build_cache.check_file(built) if which == "file" else build_cache.open_directory()
