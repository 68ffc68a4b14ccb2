"""Reads a file in the form of PyTorch's ``native_functions.yaml``: a list of entries, with the schema of an operator each.

This is the one place that knows torchgen, the generator inside the torch wheel: its model of a schema becomes ours.
torchgen parses the schemas. Where an entry says ``autogen``, it makes the variants that PyTorch would have: then all entries
of the file have to be complete ones as PyTorch's own are, with a ``dispatch`` where PyTorch asks for one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from otel_recfn.codegen.names import is_name
from otel_recfn.codegen.operators import Argument, Kind, Location, Operator, OperatorName, Return, SchemaType
from otel_recfn.model.errors import GeneratorError, SchemaError

LINE = "__line__"
"""The key under which torchgen expects each mapping's line."""
REFUSALS = (AssertionError, RuntimeError, ValueError, KeyError, IndexError, TypeError, NotImplementedError)
"""What torchgen raises at what it can't read."""
_LISTS_AND_TEXTS = re.compile(r"""(?<==)(\[[^\]]*\]|"[^"]*"|'[^']*')""")
"""Defaults that may have commas."""
_ODD_BLANKS = re.compile(r",\S|\s\s|\s=|=\s|[(\[]\s|\s[)\]\[]|\)->|->\S")
DEFAULT_NAMESPACE = "aten"
KEYS_BESIDE_FIELDS = {"func", "dispatch", LINE}


# --- YAML


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
                _refuse_a_key_twice(yaml, node)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            mapping[LINE] = node.start_mark.line + 1
            return mapping

    return LineLoader


def _refuse_a_key_twice(yaml: ModuleType, node: Any) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not node.start_mark.index <= key.start_mark.index <= node.end_mark.index:
            continue  # merged from another mapping
        if str(key.value) in seen:
            raise yaml.constructor.ConstructorError(problem=f"{key.value!r} is here twice", problem_mark=key.start_mark)
        seen.add(str(key.value))


# --- torchgen


@dataclass(frozen=True)
class _Parsed:
    """A schema of torchgen's, with what its entry says beside it."""

    namespace: str
    schema: Any
    category: str | None
    location: Location


def operators_of(entries: Sequence[Entry]) -> list[Operator]:
    """The operators in the order of the entries, then those that torchgen generates for ``autogen``.

    Raises:
        SchemaError: an entry that torchgen doesn't understand, or an operator that is declared twice.
        GeneratorError: torchgen is not there.
    """
    model = _model()
    _check_keys(entries, model)
    generates = any("autogen" in entry.fields for entry in entries)
    parsed = _generated(entries, model) if generates else [_parsed(entry, model) for entry in entries]
    operators = [_operator(each) for each in parsed]
    _check_names(operators)
    return operators


def packaged_schemas() -> Path:
    """The ``native_functions.yaml`` in the installed torch."""
    return _packaged() / "native_functions.yaml"


def _model() -> Any:
    try:
        import torchgen.model
    except ImportError as error:
        raise GeneratorError(
            "torchgen is not installed, which parses schemas; it comes with torch: pip install torch"
        ) from error
    return torchgen.model


def _packaged() -> Path:
    import torchgen

    return Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"


def _check_keys(entries: Sequence[Entry], model: Any) -> None:
    known = set(model.NativeFunction.__dataclass_fields__) | KEYS_BESIDE_FIELDS
    for entry in entries:
        unknown = sorted(str(key) for key in entry.fields if key not in known)
        if unknown:
            raise SchemaError(entry.location, f"no such key: {', '.join(unknown)}; entries have those of native_functions.yaml")


def _parsed(entry: Entry, model: Any) -> _Parsed:
    namespace, separator, schema = entry.schema.rpartition("::") if "::" in entry.schema.partition("(")[0] else ("", "", "")
    try:
        parsed = model.FunctionSchema.parse(schema if separator else entry.schema)
        parsed.kind()
    except REFUSALS as error:
        raise _refused(entry, error) from error
    if not is_name(namespace or DEFAULT_NAMESPACE):
        raise SchemaError(entry.location, f"{namespace!r} is no namespace; write 'mylib::{schema}'")
    return _Parsed(namespace or DEFAULT_NAMESPACE, parsed, entry.fields.get("category_override"), entry.location)


def _refused(entry: Entry, error: BaseException) -> SchemaError:
    text = f"{entry.schema!r} can't be read: {str(error).strip() or type(error).__name__}"
    return SchemaError(entry.location, f"{text}{_way_out_of_blanks(entry.schema)}")


def _way_out_of_blanks(schema: str) -> str:
    """What to say where blanks aren't those by which PyTorch's parser tells arguments apart: its error says nothing of them."""
    for default in _LISTS_AND_TEXTS.findall(schema):
        if ", " in default and default.startswith("["):
            return f"; the blank in the default {default} ends the argument there: write {default.replace(' ', '')}"
        if ", " in default:
            return f"; the comma and blank in the default {default} end the argument there: a text can't have them"
    if _ODD_BLANKS.search(_LISTS_AND_TEXTS.sub("", schema)):
        return (
            "; write one blank after each comma between arguments and around ->, and none beside =, brackets or another blank"
        )
    return ""


def _generated(entries: Sequence[Entry], model: Any) -> list[_Parsed]:
    """All entries, and what torchgen makes of them."""
    from torchgen.gen import add_generated_native_functions, parse_tags_yaml

    tags = parse_tags_yaml(str(_packaged() / "tags.yaml"))
    functions: list[Any] = []
    indices: dict[Any, dict[Any, Any]] = defaultdict(dict)
    for entry in entries:
        try:
            function, kernels = model.NativeFunction.from_yaml(
                entry.fields, model.Location(entry.location.file, entry.location.line), tags
            )
            model.BackendIndex.grow_index(indices, kernels)
        except REFUSALS as error:
            raise _refused(entry, error) from error
        functions.append(function)
    try:
        add_generated_native_functions(functions, indices)
    except REFUSALS as error:
        raise SchemaError(Location(entries[0].location.file, 1), f"no variants can be generated: {error}") from error
    return [_from_function(each) for each in functions]


def _from_function(function: Any) -> _Parsed:
    location = Location(function.loc.file, function.loc.line, str(function.func.name))
    return _Parsed(function.namespace, function.func, function.category_override, location)


def _check_names(operators: Sequence[Operator]) -> None:
    seen: dict[str, Location] = {}
    for each in operators:
        if not is_name(each.name.full) or not is_name(f"_{each.name.overload}"):
            raise SchemaError(each.location, f"{str(each.name)!r} is no name; write letters, digits and underscores")
        other = seen.setdefault(str(each.name), each.location)
        if other is not each.location:
            raise SchemaError(each.location, f"declared already in line {other.line}; give it an overload name of its own")


def _operator(parsed: _Parsed) -> Operator:
    schema = parsed.schema
    name = schema.name.name
    return Operator(
        name=OperatorName(
            namespace=parsed.namespace,
            base=name.base,
            full=str(name),
            overload=schema.name.overload_name,
            is_inplace=name.inplace,
            is_dunder=name.dunder_method,
        ),
        kind=Kind(schema.kind().name),
        arguments=tuple(_arguments(schema.arguments)),
        returns=tuple(Return(each.name, _type(each), _alias(each)) for each in schema.returns),
        category=parsed.category,
        schema=str(schema),
        location=parsed.location,
    )


def _arguments(arguments: Any) -> Iterator[Argument]:
    groups = ((arguments.flat_positional, False, False), (arguments.flat_kwarg_only, True, False), (arguments.out, True, True))
    for group, keyword_only, is_out in groups:
        for each in group:
            yield Argument(each.name, _type(each), each.default, _alias(each), keyword_only, is_out)


def _type(declared: Any) -> SchemaType:
    return SchemaType(str(declared.type))


def _alias(declared: Any) -> str | None:
    return str(declared.annotation) if declared.annotation is not None else None
