"""What ARCHITECTURE.md names is there, every file of its tables by the path that it gives; and every source file is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_python

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "otel_recfn"
PICTURE = ROOT / "ARCHITECTURE.md"


def named(cell: str) -> Iterator[str]:
    """The paths in a table's cell; a name without a folder stands in the folder of the path before it."""
    folder = ""
    for name in re.findall(r"`([\w./*]+)`", cell):
        if "/" in name:
            folder = name.rpartition("/")[0] + "/"
        if "/" in name or name.endswith((".py", ".hpp", ".cpp")):
            yield name if "/" in name else folder + name


def there(name: str) -> bool:
    return any(any(root.glob(name.rstrip("/"))) for root in (PACKAGE, ROOT))


def table(heading: str) -> list[tuple[str, ...]]:
    """The cells of the rows below a heading."""
    section = PICTURE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [tuple(line.strip("|").split(" | ")) for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


@pytest.mark.parametrize("row", table("The house"), ids=lambda row: row[0].strip())
def test_the_house_is_as_it_is_described(row: tuple[str, ...]) -> None:
    assert [name for name in named(row[0]) if not there(name)] == []


@pytest.mark.parametrize("row", table("To change X, open Y"), ids=lambda row: row[0].strip())
def test_what_is_to_be_opened_is_there(row: tuple[str, ...]) -> None:
    assert [name for name in named(row[1]) if not there(name)] == []


def test_every_python_file_is_in_the_house() -> None:
    found: set[Path] = set()
    for name in (name for row in table("The house") for name in named(row[0])):
        for path in PACKAGE.glob(name.rstrip("/")):
            found.update(path.rglob("*.py") if path.is_dir() else [path])
    files = {path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    assert sorted(path.relative_to(PACKAGE).as_posix() for path in files - found) == []


def test_every_native_file_is_named() -> None:
    section = PICTURE.read_text(encoding="utf-8").split("### native/\n")[1].split("\n## ")[0]
    names = set(re.findall(r"\w+\.(?:hpp|cpp|\*)", section))
    files = (path for path in (PACKAGE / "native").rglob("*.[ch]pp") if not {path.name, f"{path.stem}.*"} & names)
    assert [path.relative_to(PACKAGE).as_posix() for path in files] == []


def test_a_file_that_is_not_there_is_found() -> None:
    assert [name for name in named("`model/batch.py`, `gone.py`, `native/core/`") if not there(name)] == ["model/gone.py"]
