"""The package installs where no compiler is, and notes why its native part is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.timeouts import PATIENCE_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is built."""
    pytest.importorskip("setuptools", minversion="77")
    where = tmp_path / "tree"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "native_build.json", "*.egg-info")
    shutil.copytree(ROOT / "src", where / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, where)
    return where


def run_setup(where: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With the setuptools at hand, as pip would."""
    command = [sys.executable, "setup.py", *arguments]
    return subprocess.run(
        command,
        cwd=where,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.fixture
def without_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which no compiler is found, by name or by variable."""
    empty = tmp_path / "no-programs"
    empty.mkdir()
    return {"CC": "/bin/false", "CXX": "/bin/false", "LDSHARED": "/bin/false", "PATH": str(empty)}


def test_a_free_threaded_cpython_gets_no_native_part(tree: Path) -> None:
    """Where one is there, it says of itself what is said for it here."""
    free_threaded = (
        "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1;"
        " runpy.run_path('setup.py')"
    )
    command = [sys.executable, "-c", free_threaded, "build"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    [said] = [line for line in done.stderr.splitlines() if "free-threaded" in line]
    assert "nothing will be recorded" in said
    [note] = tree.glob("build/lib*/otel_recfn/native_build.json")
    assert json.loads(note.read_text())["built"] is False
    assert not list(tree.glob("build/**/_native*.so"))


def test_it_installs_without_a_compiler_and_says_why(
    tree: Path, without_compiler: dict[str, str]
) -> None:
    done = run_setup(tree, "bdist_wheel", "--dist-dir", "out", **without_compiler)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((tree / "out").glob("*.whl"))) as wheel:
        names = wheel.namelist()
        note = json.loads(wheel.read("otel_recfn/native_build.json"))
    assert note["built"] is False
    assert note["reason"]
    assert note["reason"] in done.stderr
    assert "native part not built, so nothing will be recorded" in done.stderr
    assert not [name for name in names if "_native." in name and name.endswith((".so", ".pyd"))]
    assert "otel_recfn/native/observer/torch_observer.cpp" in names or not list(
        (ROOT / "src").rglob("torch_observer.cpp")
    )


@pytest.mark.one_python
def test_nothing_is_compiled_again_that_did_not_change(tree: Path) -> None:
    """setuptools looks at the times of the sources, which setup.py joins."""

    def written() -> dict[str, int]:
        assert run_setup(tree, "--version").returncode == 0
        return {
            path.name: path.stat().st_mtime_ns for path in (tree / "build" / "joined").iterdir()
        }

    before = written()
    (tree / "src" / "otel_recfn" / "native" / "stage" / "more.cpp").write_text("")
    after = written()
    assert {name for name in before if after[name] != before[name]} == {"stage.cpp"}


RECORDING_COMPILER = """#!{python}
import sys
if "-o" in sys.argv:
    output = sys.argv[sys.argv.index("-o") + 1]
    open(output, "w").close()
    with open("{made}", "a") as made:
        print(output, *sys.argv, file=made)
"""


@pytest.fixture
def made_by(tree: Path, tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """Builds as for the CPython of this name whose compiler has these flags: the command that
    made each file.
    """
    compiler = tmp_path / "compiler"
    made = tmp_path / "made"
    compiler.write_text(RECORDING_COMPILER.format(python=sys.executable, made=made))
    compiler.chmod(0o700)

    def build(cpython: str, flags: str) -> dict[str, str]:
        made.write_text("")
        folders = ["--build-temp", f"build/temp.{cpython}", "--build-lib", f"build/lib.{cpython}"]
        done = run_setup(
            tree, "build_ext", *folders, CXX=f"{compiler} {flags}", LDCXXSHARED=str(compiler)
        )
        assert done.returncode == 0, done.stderr
        note = json.loads(
            (tree / "build" / f"lib.{cpython}" / "otel_recfn" / "native_build.json").read_text()
        )
        assert note["built"], note
        commands = [line.split(" ", 1) for line in made.read_text().splitlines()]
        return {Path(output).name.split(".")[0]: command for output, command in commands}

    return build


@pytest.mark.one_python
def test_what_needs_no_header_of_pythons_is_compiled_once_for_all(
    made_by: Callable[[str, str], dict[str, str]],
) -> None:
    shared = {"core", "drain"}
    include = f"-I{sysconfig.get_path('include')}"
    first = made_by("one", "-fwrapv -Wall")
    assert {name for name, command in first.items() if include not in command} == {
        *shared,
        "_native",
    }
    second = made_by("another", "-fno-strict-overflow -g")
    assert {*second} == {*first} - shared
    assert all(f"/{name}.o" in second["_native"] for name in shared)
    assert {*made_by("third", "-m32")} == {*first}
