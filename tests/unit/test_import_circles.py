"""No modules import each other in a circle, be it inside a function or for a type."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from module_imports import imports, modules

pytestmark = pytest.mark.one_python


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which modules each of them imports. ``sources``: their texts, by name."""
    return {
        module: {found for _, name in imports(source, module) if (found := _module_in(name, sources)) and found != module}
        for module, source in sources.items()
    }


def _module_in(name: str, sources: Mapping[str, str]) -> str:
    """The module that a name is, or is in; a package's name alone is its ``__init__``. Empty outside the package."""
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
    """All but the package's ``__init__``, which resolves names at first use, and in which the extensions are found."""
    return {name: path.read_text(encoding="utf-8") for name, path in modules() if name != "otel_recfn.__init__"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle(arrows(package_sources())) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from otel_recfn.callbacks.registry import add_global_callback",
        "from otel_recfn.callbacks import registry",
        "from . import registry",
        "def late():\n    import otel_recfn.callbacks.registry",
        "if TYPE_CHECKING:\n    from otel_recfn.callbacks.registry import add_global_callback",
    ],
)
def test_a_planted_circle_is_found(planted: str) -> None:
    sources = package_sources()
    sources["otel_recfn.callbacks.thread_locals"] += f"\n{planted}\n"
    assert {"otel_recfn.callbacks.thread_locals", "otel_recfn.callbacks.registry"} <= set(circle(arrows(sources)))
