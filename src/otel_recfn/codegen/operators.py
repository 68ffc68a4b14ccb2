"""The frozen model of operators: all that the generator knows of a schema, without torchgen; and what may be wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Location(NamedTuple):
    """An entry of a schema file."""

    file: str
    line: int
    operator: str = ""
    """Its schema's text up to the arguments, as far as it could be read."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.operator}" if self.operator else f"{self.file}:{self.line}"


class Kind(Enum):
    """What an operator does with its arguments; by torchgen's names (source: ``torchgen.model.SchemaKind``)."""

    FUNCTIONAL = "functional"
    INPLACE = "inplace"
    OUT = "out"
    MUTABLE = "mutable"
    SCRATCH = "scratch"


@dataclass(frozen=True)
class SchemaType:
    """A type as schemas write it, without alias annotations: ``Tensor?[]``, ``int[2]?``."""

    text: str

    @property
    def optional(self) -> SchemaType | None:
        """Of an optional type, the type that it is when it is there."""
        return SchemaType(self.text[:-1]) if self.text.endswith("?") else None

    @property
    def element(self) -> SchemaType | None:
        """Of a list, its elements' type."""
        found = re.fullmatch(r"(.+)\[[0-9]*\]", self.text)
        return SchemaType(found[1]) if found else None

    @property
    def size(self) -> int | None:
        """Of a list with a size, the size: one element may stand for so many."""
        found = re.fullmatch(r".+\[([0-9]+)\]", self.text)
        return int(found[1]) if found else None

    @property
    def base(self) -> str:
        """The name without lists and optionals."""
        inner = self.optional or self.element
        return inner.base if inner else self.text

    @property
    def is_tensor_like(self) -> bool:
        """Whether it is a tensor, an optional one, or a list of them."""
        return self.base == "Tensor"


@dataclass(frozen=True)
class Argument:
    """An argument of an operator."""

    name: str
    type: SchemaType
    default: str | None
    """As the schema writes it."""
    alias: str | None
    """The alias annotation: ``a``, ``a!``, ``a -> *``."""
    keyword_only: bool
    is_out: bool


@dataclass(frozen=True)
class Return:
    """What an operator returns, or one of several."""

    name: str | None
    type: SchemaType
    alias: str | None


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
    """An operator."""

    name: OperatorName
    kind: Kind
    arguments: tuple[Argument, ...]
    """In schema order: positional, keyword-only, out."""
    returns: tuple[Return, ...]
    category: str | None
    """The entry's ``category_override``."""
    schema: str
    """The schema's text, without namespace."""
    location: Location

    @property
    def out_arguments(self) -> tuple[Argument, ...]:
        """Those that take results."""
        return tuple(each for each in self.arguments if each.is_out)

    @property
    def in_arguments(self) -> tuple[Argument, ...]:
        """All others."""
        return tuple(each for each in self.arguments if not each.is_out)

    @property
    def cpp_name(self) -> str:
        """The name that PyTorch's C++ API has for all its overloads."""
        return f"{self.name.full}_out" if self.out_arguments else self.name.full

    def return_names(self) -> Iterator[str]:
        """What the results are called: as the argument that is returned (source: ``torchgen.api.cpp.return_names``)."""
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
