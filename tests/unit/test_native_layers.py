"""The picture of native/ in ARCHITECTURE.md holds: read from the file, compared with every
include in the C++ sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.layer_picture import layers, picture_below

pytestmark = pytest.mark.one_python

NATIVE = Path(__file__).parents[2] / "src" / "otel_recfn" / "native"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])(.+?)[>"]', re.MULTILINE)
KNOWN_WHERE = {
    "cpython": re.compile(r"(Python|structmember|frameobject|internal/.+)\.h"),
    "pytorch": re.compile(r"(ATen|c10|torch|caffe2)/.+"),
}
"""Headers of others, and the folder of ours that one must stand above, or be, to include them."""


def sources() -> Iterator[tuple[str, Path]]:
    for path in sorted(NATIVE.rglob("*.[ch]pp")):
        yield path.relative_to(NATIVE).as_posix(), path


def folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def violations(source: str, file: str, allowed: dict[str, set[str]]) -> list[str]:
    """What a file of native/ includes and may not."""
    own = folder_of(file)
    visible = {own} | allowed[own]
    return [
        f"{file} includes {name}"
        for quote, name in INCLUDE.findall(source)
        if not _may_include(quote, name, visible)
    ]


def _may_include(quote: str, name: str, visible: set[str]) -> bool:
    if quote == '"':
        return folder_of(name) in visible and (NATIVE / name).is_file()
    return all(
        folder in visible for folder, headers in KNOWN_WHERE.items() if headers.fullmatch(name)
    )


@pytest.fixture(scope="module")
def allowed() -> dict[str, set[str]]:
    above = layers(picture_below("### native/"))
    return {
        folder: above.get(folder, set())
        for folder in {*above, *(each for below in above.values() for each in below)}
    }


def test_every_folder_is_in_the_picture(allowed: dict[str, set[str]]) -> None:
    assert {folder_of(file) for file, _ in sources()} == set(allowed)


def test_no_folder_stands_above_itself(allowed: dict[str, set[str]]) -> None:
    assert [folder for folder, below in allowed.items() if folder in below] == []


@pytest.mark.parametrize(("file", "path"), [pytest.param(*each, id=each[0]) for each in sources()])
def test_includes_go_to_the_right_only(file: str, path: Path, allowed: dict[str, set[str]]) -> None:
    assert violations(path.read_text(encoding="utf-8"), file, allowed) == []


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("core/record.hpp", '#include "drain/drain.hpp"', 1),
        ("core/record.hpp", "#include <Python.h>", 1),
        ("core/record.hpp", "#  include <ATen/record_function.h>", 1),
        ("core/record.hpp", '#include "core/no_such_file.hpp"', 1),
        ("parents/parents.hpp", '#include "parents/tasks/task_entries.hpp"', 1),
        ("parents/parents.hpp", "#include <Python.h>", 1),
        ("core/record.hpp", "#include <cpuid.h>", 0),
        ("python/recorder_bindings.cpp", "#include <Python.h>\n#include <vector>", 0),
        (
            "callbacks/torch_callbacks.cpp",
            "#include <Python.h>\n#include <torch/csrc/autograd/python_variable.h>",
            0,
        ),
    ],
)
def test_a_planted_violation_is_found(
    file: str, source: str, found: int, allowed: dict[str, set[str]]
) -> None:
    assert len(violations(source, file, allowed)) == found
