"""Operators, as read from a file like PyTorch's ``native_functions.yaml``: a list of entries, each
with a schema.

This is the one place that knows torchgen, the generator inside the torch wheel: it parses the
schemas, and its model of one becomes ours. Where an entry says ``autogen``, it makes the variants
that PyTorch would have: then all entries of the file have to be complete ones as PyTorch's own are,
with a ``dispatch`` where PyTorch asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from otel_recfn.errors import GeneratorError, SchemaError

# --- the model of operators


class Argument(NamedTuple):
    """An argument of an operator."""

    name: str
    type: str
    """The type as schemas write it, without alias annotations: ``Tensor?[]``, ``int[2]?``."""
    default: str | None
    """The default as the schema writes it."""
    keyword_only: bool
    is_out: bool


class OperatorName(NamedTuple):
    """``aten::__iand__.Scalar`` is namespace ``aten``, base ``and``, overload ``Scalar``, and a
    dunder.
    """

    namespace: str
    base: str
    full: str
    """The name as in the schema, without namespace and overload."""
    overload: str
    is_dunder: bool

    def __str__(self) -> str:
        return f"{self.namespace}::{self.full}" + (f".{self.overload}" if self.overload else "")


@dataclass(frozen=True)
class Operator:
    """An operator as its schema declares it."""

    name: OperatorName
    kind: str
    """The operator's use of its arguments, by torchgen's names: functional, inplace, out,
    mutable or scratch.
    """
    arguments: tuple[Argument, ...]
    """The arguments in schema order: positional, keyword-only, out."""
    returns: tuple[str, ...]
    """The types of the results."""
    category: str | None
    """The text of the entry's ``category_override``."""
    schema: str
    """The schema's text, without namespace."""
    location: str
    """File, line and name, for errors."""

    @property
    def out_arguments(self) -> tuple[str, ...]:
        """The names of the arguments that take results."""
        return tuple(each.name for each in self.arguments if each.is_out)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the arguments that are the results; empty where these are new."""
        return ("self",) if self.kind == "inplace" else self.out_arguments

    @property
    def cpp_name(self) -> str:
        """The name that PyTorch's C++ API has for all its overloads."""
        return f"{self.name.full}_out" if self.out_arguments else self.name.full


def base_type(type_: str) -> str:
    """The name of a type, without lists and optionals."""
    return type_.partition("[")[0].rstrip("?")


# --- entries, from YAML

LINE = "__line__"
"""The key under which torchgen's loader says the line of each entry."""
Entry = dict[str, Any]
"""The fields of one operator."""


def read_operators(path: Path) -> list[Operator]:
    """The operators of a file in the order of its entries, then those that torchgen generates for
    ``autogen``.

    A SchemaError says where the file is no list of schemas, which entry torchgen doesn't
    understand, or which operator is declared twice.
    """
    try:
        import torchgen.gen as gen
        import yaml
    except ImportError as error:
        raise GeneratorError(
            f"torchgen, of torch, and PyYAML read schemas: {error}; pip install torch pyyaml"
        ) from error
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=gen.LineLoader)
    # The last one of a key that is there twice.
    except (yaml.YAMLError, UnicodeDecodeError, AssertionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise SchemaError(f"{path}:{mark.line + 1 if mark else 1}", f"not YAML: {error}") from error
    if not isinstance(entries, list):
        raise SchemaError(f"{path}:1", "not a list of operators; write one '- func: ...' for each")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("func"), str):
            line = entry[LINE] if isinstance(entry, dict) else 1
            raise SchemaError(
                f"{path}:{line}", f"{entry!r} has no 'func' with an operator's schema"
            )
        entry["func"] = entry["func"].strip()
    parse = _with_generated if any("autogen" in entry for entry in entries) else _parse_entries
    operators = list(parse(path, entries, gen))
    _check_names(operators)
    return operators


# --- operators, from torchgen

DEFAULT_NAMESPACE = "aten"
REFUSALS = (
    AssertionError,
    RuntimeError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
)
"""The errors by which torchgen refuses a schema."""


def _parse_entries(path: Path, entries: Sequence[Entry], gen: Any) -> Iterator[Operator]:
    known = {*gen.NativeFunction.__dataclass_fields__, "func", "dispatch", LINE}
    for entry in entries:
        text = entry["func"]
        name = text.partition("(")[0]
        location = f"{path}:{entry[LINE]}: {name}"
        if unknown := sorted({*map(str, entry)} - known):
            raise SchemaError(
                location,
                f"no such key: {', '.join(unknown)}; entries have those of native_functions.yaml",
            )
        namespace, separator, schema = text.rpartition("::") if "::" in name else ("", "", text)
        if separator and not namespace.isidentifier():
            raise SchemaError(location, f"{namespace!r} is no namespace; write 'mylib::{schema}'")
        try:
            parsed = gen.FunctionSchema.parse(schema)
            yield _operator(
                namespace or DEFAULT_NAMESPACE, parsed, entry.get("category_override"), location
            )
        except REFUSALS as error:
            raise SchemaError(
                location, f"{text!r} can't be read: {str(error) or type(error).__name__}"
            ) from error


def _with_generated(path: Path, entries: Sequence[Entry], gen: Any) -> Iterator[Operator]:
    """The operators of all entries, and those that torchgen derives from them."""
    tags = gen.parse_tags_yaml(
        str(Path(gen.__file__).parent / "packaged" / "ATen" / "native" / "tags.yaml")
    )
    try:
        functions = gen.parse_native_yaml_struct(entries, tags, path=str(path)).native_functions
    except REFUSALS as error:
        raise SchemaError(path, f"can't be read by PyTorch's parser: {error}") from error
    for each in functions:
        yield _operator(
            each.namespace, each.func, each.category_override, f"{each.loc}: {each.func.name}"
        )


def _check_names(operators: Sequence[Operator]) -> None:
    seen: dict[str, str] = {}
    for each in operators:
        if not each.name.full.isidentifier() or not f"_{each.name.overload}".isidentifier():
            raise SchemaError(
                each.location,
                f"{str(each.name)!r} is no name; write letters, digits and underscores",
            )
        other = seen.setdefault(str(each.name), each.location)
        if other != each.location:
            raise SchemaError(
                each.location, f"declared already, at {other}; give it an overload name of its own"
            )


def _operator(namespace: str, schema: Any, category: str | None, location: str) -> Operator:
    name, arguments = schema.name.name, schema.arguments
    groups = (
        (arguments.flat_positional, False, False),
        (arguments.flat_kwarg_only, True, False),
        (arguments.out, True, True),
    )
    return Operator(
        name=OperatorName(
            namespace,
            name.base,
            full=str(name),
            overload=schema.name.overload_name,
            is_dunder=name.dunder_method,
        ),
        kind=schema.kind().name,
        arguments=tuple(
            Argument(each.name, str(each.type), each.default, *how)
            for group, *how in groups
            for each in group
        ),
        returns=tuple(str(each.type) for each in schema.returns),
        category=category,
        schema=str(schema),
        location=location,
    )
