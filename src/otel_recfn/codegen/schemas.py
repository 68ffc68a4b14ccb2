"""Operators, as read from a file like PyTorch's ``native_functions.yaml``: a list of entries, each with a schema.

This is the one place that knows torchgen, the generator inside the torch wheel: it parses the schemas, and its model of one
becomes ours. Where an entry says ``autogen``, it makes the variants that PyTorch would have: then all entries of the file have
to be complete ones as PyTorch's own are, with a ``dispatch`` where PyTorch asks for one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from otel_recfn.errors import GeneratorError, SchemaError

# --- the model of operators


class Location(NamedTuple):
    """An entry of a schema file."""

    file: str
    line: int
    operator: str = ""
    """The schema's text up to the arguments, as far as it could be read."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}" if self.operator else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class SchemaType:
    """A type as schemas write it, without alias annotations: ``Tensor?[]``, ``int[2]?``."""

    text: str

    @property
    def optional(self) -> SchemaType | None:
        """The type without its optionality."""
        return SchemaType(self.text[:-1]) if self.text.endswith("?") else None

    @property
    def element(self) -> SchemaType | None:
        """The type of a list's elements."""
        found = re.fullmatch(r"(.+)\[[0-9]*\]", self.text)
        return SchemaType(found[1]) if found else None

    @property
    def size(self) -> int | None:
        """The size of a list that declares one, for which one element may stand."""
        found = re.fullmatch(r".+\[([0-9]+)\]", self.text)
        return int(found[1]) if found else None

    @property
    def base(self) -> str:
        """The name of the type, without lists and optionals."""
        inner = self.optional or self.element
        return inner.base if inner else self.text


@dataclass(frozen=True)
class Argument:
    """An argument of an operator."""

    name: str
    type: SchemaType
    default: str | None
    """The default as the schema writes it."""
    keyword_only: bool
    is_out: bool


@dataclass(frozen=True)
class Return:
    """A result of an operator."""

    name: str | None
    type: SchemaType


@dataclass(frozen=True)
class OperatorName:
    """``aten::__iand__.Scalar`` is namespace ``aten``, base ``and``, in place, dunder, overload ``Scalar``."""

    namespace: str
    base: str
    full: str
    """The name as in the schema, without namespace and overload."""
    overload: str
    is_inplace: bool
    is_dunder: bool

    def __str__(self) -> str:
        return f"{self.namespace}::{self.full}" + (f".{self.overload}" if self.overload else "")


@dataclass(frozen=True)
class Operator:
    """An operator as its schema declares it."""

    name: OperatorName
    kind: str
    """The operator's use of its arguments, by torchgen's names: functional, inplace, out, mutable or scratch."""
    arguments: tuple[Argument, ...]
    """The arguments in schema order: positional, keyword-only, out."""
    returns: tuple[Return, ...]
    category: str | None
    """The entry's ``category_override``."""
    schema: str
    """The schema's text, without namespace."""
    location: Location

    @property
    def out_arguments(self) -> tuple[Argument, ...]:
        """The arguments that take results."""
        return tuple(each for each in self.arguments if each.is_out)

    @property
    def in_arguments(self) -> tuple[Argument, ...]:
        """The arguments that take no results."""
        return tuple(each for each in self.arguments if not each.is_out)

    @property
    def cpp_name(self) -> str:
        """The name that PyTorch's C++ API has for all its overloads."""
        return f"{self.name.full}_out" if self.out_arguments else self.name.full

    def return_names(self) -> Iterator[str]:
        """The names of the results: of the argument that is returned (source: ``torchgen.api.cpp.return_names``)."""
        argument_names = {each.name for each in self.arguments}
        for number, each in enumerate(self.returns):
            if self.name.is_inplace:
                yield "self"
            elif self.out_arguments:
                yield self.out_arguments[number].name
            elif each.name:
                yield f"{each.name}_return" if each.name in argument_names else each.name
            else:
                yield "result" if len(self.returns) == 1 else f"result{number}"


# --- entries, from YAML

LINE = "__line__"
"""The key under which torchgen expects the line of each mapping."""


class Entry(NamedTuple):
    """The entry of one operator."""

    location: Location
    schema: str
    """The schema, with the namespace if it has one."""
    fields: dict[str, Any]
    """The entry's fields as YAML has them, and ``LINE``."""


def read_entries(path: Path) -> list[Entry]:
    """The entries of the file in order; a SchemaError where it is no YAML, or no list of mappings with a ``func``."""
    try:
        import yaml
    except ImportError as error:
        raise GeneratorError("PyYAML is not installed, which reads schema files; pip install pyyaml") from error
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
    return Entry(Location(file, line, schema.partition("(")[0]), schema, fields | {"func": schema})


def _loader(yaml: Any) -> Any:
    """A YAML loader that adds its line to each mapping, and refuses a second ``func`` in it: an entry without its dash."""

    class LineLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            schemas = [key for key, _ in node.value if key.value == "func"]
            if len(schemas) > 1:
                raise yaml.constructor.ConstructorError(problem="'func' is here twice", problem_mark=schemas[1].start_mark)
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            mapping[LINE] = node.start_mark.line + 1
            return mapping

    return LineLoader


# --- operators, from torchgen

DEFAULT_NAMESPACE = "aten"
KEYS_BESIDE_FIELDS = {"func", "dispatch", LINE}
REFUSALS = (AssertionError, RuntimeError, ValueError, KeyError, IndexError, TypeError, NotImplementedError)
"""The errors by which torchgen refuses a schema."""


def operators_of(entries: Sequence[Entry]) -> list[Operator]:
    """The operators in the order of the entries, then those that torchgen generates for ``autogen``.

    A SchemaError says which entry torchgen doesn't understand, or which operator is declared twice.
    """
    try:
        import torchgen.model as model
    except ImportError as error:
        raise GeneratorError("torchgen, which parses schemas, is missing; it comes with torch: pip install torch") from error
    known = set(model.NativeFunction.__dataclass_fields__) | KEYS_BESIDE_FIELDS
    for entry in entries:
        unknown = sorted(str(key) for key in entry.fields if key not in known)
        if unknown:
            raise SchemaError(entry.location, f"no such key: {', '.join(unknown)}; entries have those of native_functions.yaml")
    if any("autogen" in entry.fields for entry in entries):
        operators = _with_generated(entries, model)
    else:
        operators = [_parsed(entry, model) for entry in entries]
    _check_names(operators)
    return operators


def _parsed(entry: Entry, model: Any) -> Operator:
    namespace, separator, schema = entry.schema.rpartition("::") if "::" in entry.location.operator else ("", "", entry.schema)
    try:
        parsed = model.FunctionSchema.parse(schema)
        parsed.kind()
    except REFUSALS as error:
        raise _refused(entry, error) from error
    if separator and not namespace.isidentifier():
        raise SchemaError(entry.location, f"{namespace!r} is no namespace; write 'mylib::{schema}'")
    return _operator(namespace or DEFAULT_NAMESPACE, parsed, entry.fields.get("category_override"), entry.location)


def _refused(entry: Entry, error: BaseException) -> SchemaError:
    why = str(error).strip() or type(error).__name__
    return SchemaError(entry.location, f"{entry.schema!r} can't be read: {why}")


def _with_generated(entries: Sequence[Entry], model: Any) -> list[Operator]:
    """The operators of all entries, and those that torchgen derives from them."""
    from torchgen.gen import add_generated_native_functions, parse_tags_yaml

    tags = parse_tags_yaml(str(Path(model.__file__).parent / "packaged" / "ATen" / "native" / "tags.yaml"))
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
    locations = [Location(each.loc.file, each.loc.line, str(each.func.name)) for each in functions]
    made = zip(functions, locations, strict=True)
    return [_operator(each.namespace, each.func, each.category_override, location) for each, location in made]


def _check_names(operators: Sequence[Operator]) -> None:
    seen: dict[str, Location] = {}
    for each in operators:
        if not each.name.full.isidentifier() or not f"_{each.name.overload}".isidentifier():
            raise SchemaError(each.location, f"{str(each.name)!r} is no name; write letters, digits and underscores")
        other = seen.setdefault(str(each.name), each.location)
        if other is not each.location:
            raise SchemaError(each.location, f"declared already in line {other.line}; give it an overload name of its own")


def _operator(namespace: str, schema: Any, category: str | None, location: Location) -> Operator:
    name, arguments = schema.name.name, schema.arguments
    groups = ((arguments.flat_positional, False, False), (arguments.flat_kwarg_only, True, False), (arguments.out, True, True))
    return Operator(
        name=OperatorName(
            namespace=namespace,
            base=name.base,
            full=str(name),
            overload=schema.name.overload_name,
            is_inplace=name.inplace,
            is_dunder=name.dunder_method,
        ),
        kind=schema.kind().name,
        arguments=tuple(
            Argument(each.name, SchemaType(str(each.type)), each.default, keyword_only, is_out)
            for group, keyword_only, is_out in groups
            for each in group
        ),
        returns=tuple(Return(each.name, SchemaType(str(each.type))) for each in schema.returns),
        category=category,
        schema=str(schema),
        location=location,
    )
