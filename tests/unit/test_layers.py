"""The layer picture of ARCHITECTURE.md holds: read from the file, compared with every import in the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from layer_picture import layers, picture_below
from module_imports import imports, modules

pytestmark = pytest.mark.one_python

OPEN_TO_ALL = {"model", "version", "_native"}
BESIDE_THE_PICTURE = {"model": {"version"}, "version": set()}


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
    found = {layer: below | OPEN_TO_ALL for layer, below in layers(picture_below("## Layers")).items()}
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
    ("module", "source"),
    [
        ("otel_recfn.recording.recorder", "from otel_recfn.sinks.spans.sink import SpanSink"),
        ("otel_recfn.recording.recorder", "from otel_recfn import session"),
        ("otel_recfn.recording.recorder", "from ..sinks import spans"),
        ("otel_recfn.recording.recorder", "def late():\n    import otel_recfn.instrumentor"),
        ("otel_recfn.sinks.spans.sink", "if TYPE_CHECKING:\n    from otel_recfn.sources import torch_observer"),
        ("otel_recfn.model.batch", "from otel_recfn.recording.recorder import Recorder"),
        ("otel_recfn.settings", "import otel_recfn.session"),
        ("otel_recfn.session", "from otel_recfn.settings import Settings"),
    ],
)
def test_a_planted_violation_is_found(module: str, source: str, allowed: dict[str, set[str]]) -> None:
    assert len(violations(source, module, allowed)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("otel_recfn.cli", "from otel_recfn.session import Session"),
        ("otel_recfn.session", "from otel_recfn.recording.recorder import recorder"),
        (
            "otel_recfn.sinks.spans.sink",
            "from ..protocol import Sink\nfrom ...model.batch import Batch\nimport otel_recfn.batches",
        ),
        ("otel_recfn.recording.recorder", "from otel_recfn import _native"),
    ],
)
def test_what_the_picture_allows_is_let_through(module: str, source: str, allowed: dict[str, set[str]]) -> None:
    assert violations(source, module, allowed) == []


def test_the_picture_is_read_with_the_lines_that_go_on() -> None:
    read = layers("    a, b -> c -> d -> model\n              -> e, f -> model\n         -> g -> d")
    assert read["a"] == read["b"] >= {"c", "d", "e", "f", "g", "model"}
    assert "g" not in read["c"]
    assert read["g"] >= {"d", "model"}
    assert "d" not in read["e"]
    assert "e" not in read["d"]
