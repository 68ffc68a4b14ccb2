"""The layer picture of ARCHITECTURE.md holds, no modules import each other in a circle, and
threads of ours import nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from helpers.layer_picture import layers, picture_below

pytestmark = pytest.mark.one_python

PACKAGE = Path(__file__).parents[2] / "src" / "otel_recfn"
OPEN_TO_ALL = {"model", "errors", "version", "_native"}
BESIDE_THE_PICTURE = {"model": {"errors", "version"}, "errors": set(), "version": set()}


def modules() -> Iterator[tuple[str, Path]]:
    """Name and file of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(("otel_recfn", *path.relative_to(PACKAGE).with_suffix("").parts)), path


@cache
def imports(source: str, module: str) -> tuple[tuple[int, str], ...]:
    """Line and absolute name of everything a module of the package imports, wherever in its
    text.
    """
    return tuple(_imports(source, module))


def _imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    package = module.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            origin = (base + (node.module or "")).rstrip(".")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def layer_of(name: str) -> str | None:
    """The layer that an absolute name belongs to; None outside the package."""
    parts = name.split(".")
    return parts[1] if parts[0] == "otel_recfn" and len(parts) > 1 else None


def violations(source: str, module: str, allowed: dict[str, set[str]]) -> list[str]:
    """What a module imports and may not."""
    own = layer_of(module) or ""
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module)
        if (other := layer_of(name)) is not None and other != own and other not in allowed[own]
    ]


@pytest.fixture(scope="module")
def allowed() -> dict[str, set[str]]:
    found = {
        layer: below | OPEN_TO_ALL for layer, below in layers(picture_below("## Layers")).items()
    }
    return found | BESIDE_THE_PICTURE | {"__init__": {*found, *BESIDE_THE_PICTURE}}


def test_every_module_has_a_layer(allowed: dict[str, set[str]]) -> None:
    missing = [name for name, _ in modules() if layer_of(name) not in allowed]
    assert not missing, f"put these into the picture of ARCHITECTURE.md: {missing}"


@pytest.mark.parametrize(("name", "path"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_imports_go_to_the_right_only(name: str, path: Path, allowed: dict[str, set[str]]) -> None:
    assert violations(path.read_text(encoding="utf-8"), name, allowed) == []


@pytest.mark.parametrize(("name", "path"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_no_module_imports_torch_when_it_is_loaded(name: str, path: Path) -> None:
    top = ast.parse(path.read_text(encoding="utf-8")).body
    loaded = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [found for node in loaded for _, found in imports(ast.unparse(node), name)]
    assert not [found for found in names if found.split(".")[0] == "torch"]


@pytest.mark.parametrize(
    "layer", ["sinks", "batches", "model", "recording", "session", "sources", "support"]
)
def test_what_runs_in_threads_of_ours_calls_nothing_of_numpy_that_imports(layer: str) -> None:
    calls = re.compile(r"np\.(unique|isin|in1d|intersect1d|setdiff1d|union1d|ma)\b")
    # The program calls these in its own threads, when it asks for a table or a tree.
    asked_for = {"averages.py", "build_tree.py", "measures.py"}
    sources = [path for path in (PACKAGE / layer).rglob("*.py") if path.name not in asked_for]
    assert sources
    assert not [path.name for path in sources if calls.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("otel_recfn.recording.recorder", "from otel_recfn import session", 1),
        ("otel_recfn.recording.recorder", "from ..sinks import spans", 1),
        ("otel_recfn.recording.recorder", "def late():\n    import otel_recfn.instrumentor", 1),
        (
            "otel_recfn.model.batch",
            "if TYPE_CHECKING:\n    from otel_recfn.recording.recorder import Recorder",
            1,
        ),
        ("otel_recfn.cli", "from otel_recfn.session import Session", 0),
        (
            "otel_recfn.sinks.spans.sink",
            "from ..protocol import Sink\nfrom ...model.batch import Batch",
            0,
        ),
        ("otel_recfn.recording.recorder", "from otel_recfn import _native", 0),
    ],
)
def test_a_planted_violation_is_found(
    module: str, source: str, found: int, allowed: dict[str, set[str]]
) -> None:
    assert len(violations(source, module, allowed)) == found


def test_the_picture_is_read_with_the_lines_that_go_on() -> None:
    read = layers("    a, b -> c -> d -> model\n              -> e, f -> model\n         -> g -> d")
    assert read["a"] == read["b"] >= {"c", "d", "e", "f", "g", "model"}
    assert "g" not in read["c"]
    assert read["g"] >= {"d", "model"}
    assert "d" not in read["e"]


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which modules each of them imports. ``sources``: their texts, by name."""
    return {
        module: {
            found
            for _, name in imports(source, module)
            if (found := _module_in(name, sources)) and found != module
        }
        for module, source in sources.items()
    }


def _module_in(name: str, sources: Mapping[str, str]) -> str:
    """The module that a name is, or is in; a package's name alone is its ``__init__``.

    Empty outside the package.
    """
    while name and name not in sources and f"{name}.__init__" not in sources:
        name = name.rpartition(".")[0]
    return name if name in sources or not name else f"{name}.__init__"


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, in its order; none where there is no circle."""
    done: set[str] = set()

    def search(way: list[str]) -> list[str]:
        for below in sorted(edges[way[-1]] - done):
            found = way[way.index(below) :] if below in way else search([*way, below])
            if found:
                return found
        done.add(way[-1])
        return []

    return next((found for start in sorted(edges) if (found := search([start]))), [])


def package_sources() -> dict[str, str]:
    """All but the package's ``__init__``, which resolves names at first use, and in which the
    extensions are found.
    """
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in modules()
        if name != "otel_recfn.__init__"
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(arrows(package_sources())) == []


@pytest.mark.parametrize(
    "planted", ["from . import batch", "def late():\n    import otel_recfn.model.batch"]
)
def test_a_planted_circle_is_found(planted: str) -> None:
    sources = package_sources()
    sources["otel_recfn.model.events"] += f"\n{planted}\n"
    assert {"otel_recfn.model.events", "otel_recfn.model.batch"} <= set(circle(arrows(sources)))
