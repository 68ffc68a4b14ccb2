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


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_cache_that_others_can_write_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(ObserverUnavailable, match=r"writable by others.*OTEL_RECFN_CACHE_DIR"):
        build_cache.open_directory()


def test_a_sticky_cache_that_others_can_write_is_refused_too(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o1777)
    with pytest.raises(ObserverUnavailable, match="writable by others"):
        build_cache.open_directory()


def test_a_cache_that_others_can_read_is_fine(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    assert build_cache.open_directory().name == cache.name


def test_a_symlink_is_refused_even_if_it_leads_to_a_safe_directory(cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    cache.symlink_to(elsewhere)
    with pytest.raises(ObserverUnavailable, match="not a real directory"):
        build_cache.open_directory()


def test_a_symlink_above_is_followed_and_what_it_leads_to_is_checked(cache: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    cache.parent.symlink_to(open_to_all)
    assert build_cache.open_directory() == open_to_all.resolve() / cache.name
    open_to_all.chmod(0o777)
    with pytest.raises(ObserverUnavailable, match="directory above the cache"):
        build_cache.open_directory()


def test_a_sticky_directory_above_is_fine(cache: Path) -> None:
    cache.parent.mkdir()
    cache.parent.chmod(0o1777)
    assert build_cache.open_directory().name == cache.name


def test_a_file_in_its_place_is_refused(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("")
    with pytest.raises(ObserverUnavailable, match="not a real directory"):
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


def test_files_are_checked_before_they_are_loaded(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    good, shared, link, missing = (cache / name for name in ("good.so", "shared.so", "link.so", "missing.so"))
    for path, mode in ((good, 0o755), (shared, 0o775)):
        path.write_text("")
        path.chmod(mode)
    link.symlink_to(good)
    build_cache.check_file(good)
    for path, complaint in ((shared, "writable by others"), (link, "not a regular file"), (missing, "cannot be read")):
        with pytest.raises(ObserverUnavailable, match=complaint):
            build_cache.check_file(path)
