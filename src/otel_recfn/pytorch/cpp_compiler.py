"""The C++ compiler of this machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile

from otel_recfn.model.errors import ObserverUnavailable

MACOS = sys.platform == "darwin"
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 300
BUILD_AHEAD = "or build it ahead with `otel-recfn build` on a machine with the same torch"
"""A way out, for the end of a message."""


def find_compiler() -> list[str]:
    """The C++ compiler as the start of a command: ``$CXX``, else the first of c++, g++, clang++.

    Raises:
        ObserverUnavailable: there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        if shutil.which(chosen[0]) is None:
            raise ObserverUnavailable(f"CXX={os.environ['CXX']} names no program that can be run; correct or unset CXX")
        return chosen
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return [path]
    raise ObserverUnavailable(
        "no C++ compiler found (tried $CXX, c++, g++, clang++); "
        f"{'xcode-select --install' if MACOS else 'apt-get install g++'}, {BUILD_AHEAD}"
    )


def run(command: list[str]) -> str | None:
    """What the compiler complained about; None where it succeeded."""
    try:
        return _run_without_pipes(command)
    except subprocess.TimeoutExpired:
        return f"no result after {COMPILE_SECONDS} s"
    except OSError as error:
        return str(error)


def _run_without_pipes(command: list[str]) -> str | None:
    """A process that is forked meanwhile keeps what pipes are open, and who reads them waits for its end.

    Without ``close_fds`` Python has none of its own either: it spawns the process, as the path is absolute.
    """
    program = shutil.which(command[0]) or command[0]
    with tempfile.TemporaryFile() as said:
        done = subprocess.run(
            [os.path.abspath(program), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=COMPILE_SECONDS,
            close_fds=False,
        )
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    return None if done.returncode == 0 else (text or f"exit code {done.returncode}, no message")
