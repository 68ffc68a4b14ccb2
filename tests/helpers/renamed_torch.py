"""Our libraries as they are compiled where details of PyTorch have other names, for several such
PyTorchs at once.

PyTorch's headers take the compiler most of its time, so they are read once. Copies of our source
follow, one for each PyTorch, in which the names of details are replaced, which comes to the same as
another name there.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from otel_recfn.pytorch import details, observer_build
from otel_recfn.pytorch.observer_build import NativeLibrary

QUICK = (
    "-O0",
    "-DAT_PER_OPERATOR_HEADERS",
    "--param",
    "ggc-min-expand=1000",
    "--param",
    "ggc-min-heapsize=2097152",
)
"""Headers of PyTorch's don't read those of all operators then, which these need not, and GCC
looks for no garbage.
"""
ENTRIES = re.compile(r"\b(?:recfn_observer_\w+|PyInit_\w+)\b")
"""What a library is entered by."""
OWN_INCLUDE = re.compile(r'^#include "', re.MULTILINE)
INCLUDE = re.compile(r"^#include <(.+)>", re.MULTILINE)


def log_losses_again() -> None:
    """Have each detail that is missing logged once more: a process logs it once."""
    details._log_once.cache_clear()  # noqa: SLF001


class RenamedBuilds:
    """A library, compiled once for each PyTorch, and put together for one of them when that is
    asked for.

    Args:
        library: ours.
        torches: the words that have another name in each.
        folder: for the files.
    """

    def __init__(
        self, library: NativeLibrary, torches: Sequence[Sequence[str]], folder: Path
    ) -> None:
        self.library, self._folder = library, folder
        # What is compiled, and how, is what the copies have to follow.
        sources = observer_build._sources(library)  # noqa: SLF001
        texts = {
            str(source.relative_to(observer_build.NATIVE)): source.read_text(encoding="utf-8")
            for source in sources
        }
        self._entries = sorted({name for text in texts.values() for name in ENTRIES.findall(text)})
        for number in range(len(torches)):
            self._copy(texts, number)
        parts = [self._part(number, words) for number, words in enumerate(torches)]
        (folder / "all.cpp").write_text(_includes(texts.values()) + "".join(parts))
        self._compile()

    def command(self, number: int) -> str:
        """What CXX is for the library with this PyTorch: it compiles nothing, but links what is
        compiled already.
        """
        script = self._folder / f"links{number}"
        aliases = shlex.join([_alias(name, f"{name}_{number}") for name in self._entries])
        compiler = shlex.join(observer_build.find_compiler())
        compiled = shlex.quote(str(self._folder / "all.o"))
        script.write_text(
            "#!/bin/sh\nfor argument; do\n  shift\n"
            f'  case $argument in *.cpp) argument={compiled};; esac\n  set -- "$@"'
            ' "$argument"\ndone\n'
            f'exec {compiler} "$@" {aliases}\n'
        )
        script.chmod(0o700)
        return str(script)

    def _copy(self, texts: dict[str, str], number: int) -> None:
        """No two copies of a header are the same to the compiler, which reads each header once."""
        for name, text in texts.items():
            copy = self._folder / str(number) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(
                f"// for PyTorch {number}\n" + OWN_INCLUDE.sub(f'#include "{number}/', text)
            )

    def _part(self, number: int, words: Sequence[str]) -> str:
        renamed = {name: f"{name}_{number}" for name in ("recfn", *self._entries)}
        renamed |= {word: f"{word}_of_another_torch_{number}" for word in words}
        defines = "".join(f"#define {name} {other}\n" for name, other in renamed.items())
        undefines = "".join(f"#undef {name}\n" for name in renamed)
        source = f'#include "{number}/{self.library.folder}/{self.library.name}.cpp"\n'
        return defines + source + undefines

    def _compile(self) -> None:
        unlinked = dataclasses.replace(self.library, links=(), optimize="-c")
        given = self._arguments(unlinked, self._folder / "all.o", self._folder / "all.cpp")
        complaints = []
        for standard in observer_build.STANDARDS:
            complaint = observer_build.run_compiler(
                [*observer_build.find_compiler(), standard, *QUICK, f"-I{self._folder}", *given]
            )
            if complaint is None:
                return
            complaints.append(complaint[-5000:])
        pytest.fail("\n".join(complaints))

    @staticmethod
    def _arguments(library: NativeLibrary, output: Path, source: Path) -> list[str]:
        torch = observer_build.find_torch()
        given = observer_build._arguments(torch, library, output)  # noqa: SLF001
        return [
            str(source) if each == str(library.source) else each
            for each in given
            if each != "-shared"
        ]


def _includes(texts: Iterable[str]) -> str:
    """What any of them includes that is not ours, Python's headers first."""
    names = {name for text in texts for name in INCLUDE.findall(text)}
    lines = [
        f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n"
        for name in sorted(names - {"Python.h"})
    ]
    first = [
        "#include <sstream>\n",
        "#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n" if "Python.h" in names else "",
    ]
    return "".join([*first, *lines])


def _alias(name: str, other: str) -> str:
    return (
        f"-Wl,-alias,_{other},_{name}" if observer_build.MACOS else f"-Wl,--defsym={name}={other}"
    )
