"""What the modules of the package import, read from their texts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "otel_recfn"


def modules() -> Iterator[tuple[str, Path]]:
    """Name and file of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(("otel_recfn", *path.relative_to(PACKAGE).with_suffix("").parts)), path


@cache
def imports(source: str, module: str) -> tuple[tuple[int, str], ...]:
    """Line and absolute name of everything a module of the package imports, wherever in its text."""
    return tuple(_imports(source, module))


def _imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    package = module.split(".")  # of an __init__.py that is the package itself; of others their parent is asked for below
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            origin = (base + (node.module or "")).rstrip(".")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)
