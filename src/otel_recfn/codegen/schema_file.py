"""Reads a file in the form of PyTorch's ``native_functions.yaml``: a list of entries with a ``func`` each."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from otel_recfn.codegen.errors import GeneratorError, Location, SchemaError

LINE = "__line__"
"""The key under which torchgen expects each mapping's line."""


class Entry(NamedTuple):
    """One operator's entry."""

    location: Location
    fields: dict[str, Any]
    """As YAML has them, and ``LINE``."""

    @property
    def schema(self) -> str:
        """The operator's schema as text, with the namespace where it has one."""
        return str(self.fields["func"])


def read_entries(path: Path) -> list[Entry]:
    """The file's entries in their order.

    Raises:
        SchemaError: it is no YAML, or no list of mappings with a ``func``.
        GeneratorError: PyYAML is not installed.
        OSError: it can't be read.
    """
    yaml = _yaml()
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader(yaml))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise SchemaError(Location(str(path), mark.line + 1 if mark else 1), f"not YAML: {error}") from error
    if not isinstance(found, list):
        raise SchemaError(Location(str(path), 1), "not a list of operators; write one '- func: ...' for each")
    return [_entry(str(path), fields) for fields in found]


def _entry(file: str, fields: Any) -> Entry:
    line = fields[LINE] if isinstance(fields, dict) else 1
    if not isinstance(fields, dict) or not isinstance(fields.get("func"), str):
        raise SchemaError(Location(file, line), f"{fields!r} has no 'func' with an operator's schema")
    schema = fields["func"].strip()
    return Entry(Location(file, line, schema.partition("(")[0]), fields | {"func": schema})


def _yaml() -> ModuleType:
    try:
        import yaml
    except ImportError as error:
        raise GeneratorError("PyYAML is not installed, which reads schema files; pip install pyyaml") from error
    return yaml  # type: ignore[no-any-return]


def _loader(yaml: ModuleType) -> Any:
    """A loader that adds its line to each mapping, and takes no key twice: there, a new entry's dash is missing."""

    class LineLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            if isinstance(node, yaml.MappingNode):
                _check_keys(yaml, node)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            mapping[LINE] = node.start_mark.line + 1
            return mapping

    return LineLoader


def _check_keys(yaml: ModuleType, node: Any) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not node.start_mark.index <= key.start_mark.index <= node.end_mark.index:
            continue  # merged from another mapping
        if str(key.value) in seen:
            raise yaml.constructor.ConstructorError(problem=f"{key.value!r} is here twice", problem_mark=key.start_mark)
        seen.add(str(key.value))
