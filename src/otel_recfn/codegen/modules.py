"""Modules of wrappers: their texts, and their files, which are written only when they change, and
never over other people's.

Each wrapper is in the shard that the hash of its operator's root name gives; a package has them
all. Texts are as they come, a statement a line or a part a line: each file tells formatters and
linters to leave it alone.

PyTorch converts each argument that is passed, also those that are the default, which costs up to
some hundred nanoseconds for a list or a keyword. So wrappers of its operators leave out what has
its default, where all have that. Operators in Python are passed all arguments: their own defaults
may be others than the schema's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from pathlib import Path

from otel_recfn.codegen import python_words
from otel_recfn.codegen.python_words import (
    ANY,
    RUNTIME,
    TORCH,
    Words,
    function_name,
    parameter_name,
)
from otel_recfn.codegen.rules import Facts, Recorded, namespace_rules, operator_facts
from otel_recfn.codegen.schemas import Argument, Operator, read_operators
from otel_recfn.errors import GeneratorError, SchemaError

MARK = "# Written by otel-recfn codegen"
"""The first words of every file of ours."""
WIDTH, STEP = 88, "    "
HEADER = [
    "# fmt: off",
    "# ruff: noqa",
    # mypy would compare defaults one by one, and can't know that an operator returns what its
    # schema says.
    '# mypy: disable-error-code="comparison-overlap, no-any-return"',
]
SINGLETONS = ("None", "True", "False")


@dataclass(frozen=True)
class WrapperRequest:
    """A request: which operators are to be wrapped, and in how many modules.

    Attributes:
        dispatch: ``module:attribute`` where the operators are found; empty for ``torch.ops``.
    """

    schema: Path
    dispatch: str = ""
    shards: int = 1

    @property
    def header(self) -> list[str]:
        """The first lines of each file, which don't depend on where files are."""
        options = f" --dispatch {self.dispatch}" if self.dispatch else ""
        return [
            f"{MARK}, which overwrites changes:",
            f"#     otel-recfn codegen --schema {self.schema.name}{options} \\",
            f"#         --shards {self.shards} --out ...",
            *HEADER,
        ]


@dataclass(frozen=True)
class Generated:
    """The result of a request."""

    texts: dict[str, str]
    """The text of each file, by name."""
    wrapped: int
    traced: int
    """The number of wrapped operators that graphs record."""
    left_out: list[str]
    """Operators without a wrapper, because PyTorch's own tracing of them is written by hand."""


def generate(request: WrapperRequest) -> Generated:
    """Read the schemas and make the modules' texts; a SchemaError or GeneratorError says what is
    in the way.
    """
    words = ANY if request.dispatch else TORCH
    found = [
        (each, operator_facts(each, namespace_rules(each.name.namespace)))
        for each in read_operators(request.schema)
    ]
    wrappers = [Wrapper(operator, facts, words) for operator, facts in found if facts is not None]
    left_out = [str(operator.name) for operator, facts in found if facts is None]
    _check_names(wrappers)
    shards: list[list[Wrapper]] = [[] for _ in range(request.shards)]
    for each in wrappers:
        shards[shard_number(each.operator.name.base, request.shards)].append(each)
    texts = {f"{_shard(number)}.py": _module(shard, request) for number, shard in enumerate(shards)}
    texts["__init__.py"] = _package(shards, left_out, request)
    return Generated(
        texts, len(wrappers), sum(each.facts.in_place is not None for each in wrappers), left_out
    )


def shard_number(root_name: str, shards: int) -> int:
    """The shard of an operator, chosen as PyTorch's generator does (source:
    ``torchgen.utils.string_stable_hash``).
    """
    digest = hashlib.sha1(root_name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "little") % shards


def _shard(number: int) -> str:
    return f"wrappers_{number}"


def _statement(opening: str, parts: Sequence[str], closing: str) -> list[str]:
    """A statement on one line; if that is too long, with a line for each part."""
    flat = f"{opening}{', '.join(parts)}{closing}"
    if len(flat) <= WIDTH or not parts:
        return [flat]
    return [opening, *[f"{STEP}{part}," for part in parts], closing]


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _quoted(names: Sequence[str]) -> str:
    return _tuple([f'"{each}"' for each in names])


# --- one operator


@dataclass(frozen=True)
class Wrapper:
    """The wrapper of one operator, as text."""

    operator: Operator
    facts: Facts
    words: Words

    @property
    def name(self) -> str:
        """The name of the function."""
        return function_name(self.operator.name)

    @property
    def constants(self) -> dict[str, str]:
        """The constants of its module that defaults are compared with: expressions by name."""
        named = {_constant(value): value for value in self._defaults.values()}
        return {name: value for name, value in named.items() if name != value}

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The defaults, by argument, that may be left out of a call."""
        if self.words is not TORCH:
            return {}
        return {
            each.name: python_words.default(each, self.operator, self.words)
            for each in self.operator.arguments
            if each.default is not None
        }

    def lines(self) -> list[str]:
        """The lines of the Operator object and of the function."""
        name, arguments = self.operator.name, self.operator.arguments
        types = ", ".join([f'"{each.name}": "{each.type}"' for each in arguments])
        returns = _quoted(self.operator.returns)
        declared = [
            f'"{name.full}"',
            f'"{name.overload}"',
            f"{{{types}}}",
            returns,
            *self._recorded_argument(),
        ]
        schema = f"{name.namespace}::{self.operator.schema}".replace("\\", "\\\\").replace(
            '"""', '\\"""'
        )
        positional = [parameter_name(each.name) for each in arguments if not each.keyword_only]
        by_name = ", ".join(
            [
                f'"{each.name}": {parameter_name(each.name)}'
                for each in arguments
                if each.keyword_only
            ]
        )
        return [
            *_statement(f"_OP_{self.name} = _LIB_{name.namespace}.operator(", declared, ")"),
            *["", ""],
            *self._signature(),
            f'{STEP}"""{schema}"""',
            f"{STEP}if not Watched.now:",
            *self._unobserved_lines(),
            f"{STEP}return _OP_{self.name}.observed({_tuple(positional)}, {{{by_name}}})",
        ]

    def _recorded_argument(self) -> list[str]:
        """The argument that says which node is recorded for a call, if one is."""
        in_place, out_of_place, guarded = (
            self.facts.in_place,
            self.facts.out_of_place,
            self.facts.guarded,
        )
        if in_place is None or out_of_place is None:
            return []
        parts = self._node(in_place)
        if self.operator.written:
            parts.append(f"outputs={_quoted(self.operator.written)}")
        if out_of_place != in_place:
            parts.append(f"out_of_place=Recorded({', '.join(self._node(out_of_place))})")
        if guarded:
            parts.append(f'guarded="{guarded}"')
        return [f"Recorded({', '.join(parts)})"]

    def _node(self, recorded: Recorded) -> list[str]:
        takes_all = recorded.inputs == tuple(f'"{each.name}"' for each in self.operator.arguments)
        return [f'"{recorded.kind}"', *([] if takes_all else [f"inputs={_tuple(recorded.inputs)}"])]

    def _signature(self) -> list[str]:
        parts: list[str] = []
        for number, each in enumerate(self.operator.arguments):
            if each.keyword_only and (
                number == 0 or not self.operator.arguments[number - 1].keyword_only
            ):
                parts.append("*")
            hint = python_words.hint(each.type, self.words)
            parameter = f"{parameter_name(each.name)}: {hint}"
            if each.default is not None:
                parameter += f" = {python_words.default(each, self.operator, self.words)}"
            parts.append(parameter)
        lines = _statement(
            f"def {self.name}(",
            parts,
            f") -> {python_words.return_hint(self.operator, self.words)}:",
        )
        try:
            compile("\n".join([*lines, " ..."]), "", "exec")
        except SyntaxError as error:
            raise SchemaError(
                self.operator.location, f"no function has such arguments: {error.msg}; change them"
            ) from error
        return lines

    def _unobserved_lines(self) -> Iterator[str]:
        """The lines that run while nobody observes: ``if dtype is device is None and alpha is
        _DEFAULT_1: ...``
        """
        arguments = self.operator.arguments
        same: dict[str, list[str]] = {}
        for name, default in self._defaults.items():
            same.setdefault(_constant(default), []).append(parameter_name(name))
        if same:
            yield (
                f"{STEP * 2}if"
                f" {' and '.join([' is '.join([*names, value]) for value, names in same.items()])}:"
            )
            yield STEP * 3 + self._call([each for each in arguments if each.default is None])
        yield STEP * 2 + self._call(arguments)

    def _call(self, passed: Sequence[Argument]) -> str:
        arguments = ", ".join([_passed_argument(each) for each in passed])
        return f"return _OP_{self.name}.target({arguments})"


def _passed_argument(argument: Argument) -> str:
    value = parameter_name(argument.name)
    if not argument.keyword_only:
        return value
    if iskeyword(argument.name):
        return f'**{{"{argument.name}": {value}}}'
    return f"{argument.name}={value}"


def _constant(expression: str) -> str:
    """The name under which a default is compared: itself, if ``is`` may stand beside it."""
    if expression in SINGLETONS or expression.startswith("torch."):
        return expression
    return f"_DEFAULT_{hashlib.sha1(expression.encode(), usedforsecurity=False).hexdigest()[:8]}"


# --- the modules and the package


def _check_names(wrappers: Sequence[Wrapper]) -> None:
    seen: dict[str, Wrapper] = {}
    for each in wrappers:
        other = seen.setdefault(each.name, each)
        if other is not each:
            problem = (
                f"its wrapper would need the name {each.name!r} as that of {other.operator.name}"
            )
            raise SchemaError(
                each.operator.location,
                f"{problem}; rename one of them, or write it into another package",
            )


def _module(wrappers: Sequence[Wrapper], request: WrapperRequest) -> str:
    dispatch = f', "{request.dispatch}"' if request.dispatch else ""
    library = "Library" if dispatch else "torch_library"
    constants = {name: value for each in wrappers for name, value in each.constants.items()}
    namespaces = sorted({each.operator.name.namespace for each in wrappers})
    lines = [
        *request.header,
        *["", "from __future__ import annotations", ""],
        "from collections.abc import Sequence",
        "from typing import Any",
        *[
            "",
            *([] if dispatch else ["import torch"]),
            f"from otel_recfn.tracing.wrappers import {', '.join(RUNTIME)}",
            "",
        ],
        *[f'_LIB_{each} = {library}("{each}"{dispatch})' for each in namespaces],
        *[f"{name} = {value}" for name, value in sorted(constants.items())],
    ]
    for wrapper in wrappers:
        lines += ["", *wrapper.lines(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _package(
    shards: Sequence[Sequence[Wrapper]], left_out: Sequence[str], request: WrapperRequest
) -> str:
    about = "# A wrapper for each operator."
    if left_out:
        about += (
            f" Without one are those whose tracing PyTorch writes by hand: {', '.join(left_out)}."
        )
    lines = [*request.header, about, ""]
    names = sorted([each.name for shard in shards for each in shard])
    for number, shard in enumerate(shards):
        if shard:
            lines += _statement(
                f"from .{_shard(number)} import (", sorted([each.name for each in shard]), ")"
            )
    return (
        "\n".join([*lines, "", *_statement("__all__ = [", [f'"{name}"' for name in names], "]")])
        + "\n"
    )


# --- the files


def stale_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """The files that are missing, differ, or belong to a shard that is no more; a GeneratorError
    if one is other people's.
    """
    changed = [folder / name for name, text in texts.items() if _content(folder / name) != text]
    ours = [
        path
        for path in folder.glob("wrappers_*.py")
        if path.is_file() and _read(path).startswith(MARK)
    ]
    return sorted([*changed, *[path for path in ours if path.name not in texts]])


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the stale files, and remove shards that are no more. Returns the files that changed."""
    stale = stale_files(folder, texts)
    folder.mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path.name in texts:
            path.write_text(texts[path.name], encoding="utf-8")
        else:
            path.unlink()
    return stale


def _content(path: Path) -> str | None:
    """The content of a file; None if there is no file."""
    if not path.exists():
        return None
    text = _read(path)
    if text.strip() and not text.startswith(MARK):
        raise GeneratorError(
            f"{path} was not written by otel-recfn codegen; choose another directory with --out, or"
            " remove it"
        )
    return text


def _read(path: Path) -> str:
    """The text of a file, whatever its encoding."""
    return path.read_text(encoding="utf-8", errors="replace")
