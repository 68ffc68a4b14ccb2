"""Builds the native part where a compiler exists, and notes why where it doesn't
(``native_build.json`` in the package).
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import sysconfig
import tempfile
from copy import copy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

NATIVE = Path("src/otel_recfn/native")
OWN_LIBRARIES = {"observer", "callbacks"}  # compiled at first use, against the user's torch
# They don't include Python's headers: compiled once for all CPythons.
WITHOUT_PYTHON = {"core", "drain"}
SOURCES = sorted(path for path in NATIVE.rglob("*.cpp") if path.parent.name not in OWN_LIBRARIES)
HEADERS = sorted(NATIVE.rglob("*.hpp"))
DEPENDS = [str(path) for path in (*SOURCES, *HEADERS)]
JOINED = Path("build/joined")
COMPILE = [
    # -g, which Python was built with, is a third of the time of a compile.
    *("-std=c++17", "-O3", "-g0"),
    "-fno-math-errno",  # rounding, which each time needs, is one instruction then and not a call
    # Else what a range costs differs by a sixth from build to build, as other code moves it.
    "-falign-functions=64",
    *("-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-missing-field-initializers"),
]
# CPythons are built with one of them; the second includes the first.
OVERFLOW = {"-fwrapv", "-fno-strict-overflow"}
# Intel's processors from Skylake to Comet Lake decode a jump anew each time that lies across 32
# bytes, or ends there: 2-4 ns of a traced call.
ALIGNED_JUMPS = "-Wa,-mbranches-within-32B-boundaries"


def folder_of(source: Path) -> str:
    """The source's folder below ``native/``."""
    return source.parent.relative_to(NATIVE).as_posix()


def joined_sources(folders: set[str]) -> list[str]:
    """A file per folder of sources, which includes them all: reading the headers again for each
    takes most of a compile.
    """
    JOINED.mkdir(parents=True, exist_ok=True)
    return [_joined(folder) for folder in sorted(folders)]


def _joined(folder: str) -> str:
    """Written only where it says something new: setuptools compiles all again where a source is
    younger than what it built.
    """
    file = JOINED / f"{folder.replace('/', '_')}.cpp"
    text = "".join(
        f'#include "{folder}/{path.name}"\n' for path in SOURCES if folder_of(path) == folder
    )
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return str(file)


FOR_ANY_PYTHON = joined_sources(WITHOUT_PYTHON)


class BuildNativeOrSayWhy(build_ext):
    """A failed compile is noted and told, and the installation goes on; without the native part
    nothing is recorded.
    """

    def run(self) -> None:
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            self._note(
                "otel-recfn needs a GIL, and this CPython is free-threaded: install with the usual"
                " build"
            )
            return
        try:
            super().run()
            reason = ""
        except Exception as error:  # every compiler driver raises its own kind
            reason = f"{type(error).__name__}: {error}"
        self._note(reason)

    def build_extensions(self) -> None:
        if platform.machine() in ("x86_64", "AMD64") and self._takes(ALIGNED_JUMPS):
            COMPILE.append(ALIGNED_JUMPS)
        super().build_extensions()

    def _takes(self, option: str) -> bool:
        """Older assemblers don't know it."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "empty.c")
            source.touch()
            command = [
                *self.compiler.compiler_so,
                option,
                "-c",
                str(source),
                "-o",
                str(source.with_suffix(".o")),
            ]
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def build_extension(self, extension: Extension) -> None:
        extension.extra_objects = [
            self._compiled_for_any_python(source) for source in FOR_ANY_PYTHON
        ]
        super().build_extension(extension)

    def _compiled_for_any_python(self, source: str) -> str:
        """The object file, which the build for another CPython may have left."""
        compiler = copy(self.compiler)
        compiler.set_include_dirs([str(NATIVE)])
        folder = self._folder_for_any_python(compiler.compiler_so_cxx)
        (built,) = compiler.object_filenames([source], output_dir=folder)
        if self.force or newer_group([source, *DEPENDS], built):
            (made,) = compiler.compile(
                [source], f"{folder}/unfinished", extra_postargs=["-fno-strict-overflow", *COMPILE]
            )
            Path(built).parent.mkdir(parents=True, exist_ok=True)
            Path(made).replace(built)  # a compiler that is killed leaves half a file
        return built

    def _folder_for_any_python(self, command: list[str]) -> str:
        """One for all whose flags differ in no more than warnings, debugging, and which of
        ``OVERFLOW`` they have.
        """
        flags = [
            word for word in command if word not in OVERFLOW and not word.startswith(("-W", "-g"))
        ]
        key = repr((flags, COMPILE, self.plat_name)).encode()
        return f"build/any-python-{hashlib.sha256(key).hexdigest()[:8]}"

    def _note(self, reason: str) -> None:
        if reason:
            self._remove_earlier_builds()
            print(
                f"otel-recfn: native part not built, so nothing will be recorded: {reason}",
                file=sys.stderr,
            )
        package = Path("src/otel_recfn") if self.inplace else Path(self.build_lib) / "otel_recfn"
        package.mkdir(parents=True, exist_ok=True)
        (package / "native_build.json").write_text(
            json.dumps({"built": not reason, "reason": reason})
        )

    def _remove_earlier_builds(self) -> None:
        """What an earlier compile left would be packaged although this one failed."""
        for extension in self.extensions:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            (Path(self.build_lib) / self.get_ext_filename(extension.name)).unlink(missing_ok=True)

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]


native = Extension(
    "otel_recfn._native",
    sources=joined_sources({folder_of(path) for path in SOURCES} - WITHOUT_PYTHON),
    depends=DEPENDS,
    include_dirs=[str(NATIVE)],
    extra_compile_args=COMPILE,
    language="c++",
)

setup(ext_modules=[native], cmdclass={"build_ext": BuildNativeOrSayWhy})
