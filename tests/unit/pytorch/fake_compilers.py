"""Compilers that are shell scripts, for a torch that is three files."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def set_version(torch: Path, version: str) -> None:
    text = (
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] ="
        " None\ngit_version = 'abc'\n"
    )
    (torch / "version.py").write_text(text)


def use_compiler(monkeypatch: pytest.MonkeyPatch, log: Path, text: str, seconds: float = 0) -> None:
    script = log.parent / "compiler"
    script.write_text(text.format(log=log, seconds=seconds))
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))


def runs(log: Path) -> int:
    return len(log.read_text().splitlines())
