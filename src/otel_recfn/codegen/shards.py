"""Wrappers in modules: each in the shard that the hash of its operator's root name gives, and a package that has them all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_recfn.codegen.layout import STEP, WIDTH, Group, comment, lines_of, split_lines
from otel_recfn.codegen.names import RUNTIME, is_objects, library_name
from otel_recfn.codegen.wrapper_text import Wrapper
from otel_recfn.model.errors import SchemaError

MARK = "# Written by otel-recfn codegen"
"""How every file of ours begins."""
AMBIGUOUS = {"I", "O", "l"}
FOR_MYPY = '# mypy: disable-error-code="comparison-overlap, no-any-return"'
"""It would have defaults compared one by one, and can't know that an operator returns what its schema says."""


@dataclass(frozen=True)
class Request:
    """What is to be written.

    Attributes:
        schema: the file.
        dispatch: ``module:attribute`` where the operators are found; empty for ``torch.ops``.
        shards: how many modules.
    """

    schema: Path
    dispatch: str = ""
    shards: int = 1

    @property
    def header(self) -> list[str]:
        """The lines with which each file begins. They don't depend on where files lie."""
        options = f" --dispatch {self.dispatch}" if self.dispatch else ""
        command = f"otel-recfn codegen --schema {self.schema.name}{options} --shards {self.shards} --out ..."
        return [f"{MARK}, which overwrites changes:", *comment(command, STEP)]


def shard_of(root_name: str, shards: int) -> int:
    """As PyTorch's generator shards its files (source: ``torchgen.utils.string_stable_hash``)."""
    digest = hashlib.sha1(root_name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest, "little") % shards


def texts(wrappers: Sequence[Wrapper], left_out: Sequence[str], request: Request) -> dict[str, str]:
    """The package's files by name.

    Raises:
        SchemaError: two operators would have the same name in Python.
    """
    _check_names(wrappers)
    shards: list[list[Wrapper]] = [[] for _ in range(request.shards)]
    for each in wrappers:
        shards[shard_of(each.operator.name.base, request.shards)].append(each)
    files = {shard_file(number): _module(shard, request) for number, shard in enumerate(shards)}
    return files | {"__init__.py": _package(shards, left_out, request)}


def shard_file(number: int) -> str:
    """A shard's file."""
    return f"wrappers_{number}.py"


def _check_names(wrappers: Sequence[Wrapper]) -> None:
    seen: dict[str, Wrapper] = {}
    for each in wrappers:
        other = seen.setdefault(each.name, each)
        if other is not each:
            told = f"its wrapper would need the name {each.name!r} as that of {other.operator.name}"
            raise SchemaError(each.operator.location, f"{told}; rename one of them, or write it into another package")
        if is_objects(each.name):
            told = f"its wrapper would need the name {each.name!r}, which are for objects in the written modules; rename it"
            raise SchemaError(each.operator.location, told)


def _module(wrappers: Sequence[Wrapper], request: Request) -> str:
    libraries = sorted({each.operator.name.namespace for each in wrappers})
    body = [line for namespace in libraries for line in lines_of(_library(namespace, request))]
    constants = {name: value for each in wrappers for name, value in each.constants.items()}
    body += [f"{name} = {value}" for name, value in sorted(constants.items())]
    for number, wrapper in enumerate(wrappers):
        body += [*([""] if number else []), "", *wrapper.lines()]
    text = "\n".join(body)
    lines = [*request.header, FOR_MYPY, *_for_linters(wrappers), "", "from __future__ import annotations", *_imports(text)]
    return "\n".join([*lines, *([""] if body else []), text]).rstrip() + "\n"


def _for_linters(wrappers: Sequence[Wrapper]) -> list[str]:
    """Where names are those that linters find hard to read: they are the schema's."""
    parameters = {argument.name for each in wrappers for argument in each.operator.arguments}
    rules = [("E741", parameters), ("E743", {each.name for each in wrappers})]
    told = ", ".join(rule for rule, names in rules if names & AMBIGUOUS)
    return [f"# ruff: noqa: {told}"] if told else []


def _library(namespace: str, request: Request) -> Group:
    name = library_name(namespace)
    if request.dispatch:
        return Group(f"{name} = Library(", [f'"{namespace}"', f'"{request.dispatch}"'], ")")
    return Group(f"{name} = torch_library(", [f'"{namespace}"'], ")")


def _imports(text: str) -> list[str]:
    """What the text uses."""
    text = re.sub(r'^ +""".*?(?<!\\)"""$', "", text, flags=re.DOTALL | re.MULTILINE)  # schemas may have these words, too

    def used(word: str) -> bool:
        return re.search(rf"(?<![\w.\"]){word}(?=[\[(.,:\s)\]])", text) is not None

    from_typing = [word for word in ("Annotated", "Any") if used(word)]
    runtime = [word for word in RUNTIME if used(word)]
    lines = ["", *(["from collections.abc import Sequence"] if used("Sequence") else [])]
    lines += [f"from typing import {', '.join(from_typing)}"] if from_typing else []
    lines += [*([""] if len(lines) > 1 else []), "import torch"] if re.search(r"(?<![\w.])torch\.", text) else []
    if runtime:
        lines += [""] if len(lines) > 1 and lines[-1] != "import torch" else []
        lines += _import_lines("otel_recfn.tracing.wrappers", runtime)
    return lines if len(lines) > 1 else []


def _import_lines(module: str, names: Sequence[str]) -> list[str]:
    line = f"from {module} import {', '.join(names)}"
    return [line] if len(line) <= WIDTH else split_lines(Group(f"from {module} import (", names, ")"))


def _package(shards: Sequence[Sequence[Wrapper]], left_out: Sequence[str], request: Request) -> str:
    lines = [*request.header, *comment(_about(left_out)), ""]
    names: list[str] = []
    for number in sorted(range(len(shards)), key=lambda number: _natural(shard_file(number))):
        own = sorted((each.name for each in shards[number]), key=_import_order)
        names += own
        if own:
            module = shard_file(number).removesuffix(".py")
            lines += _import_lines(f".{module}", own)
    exported = [f'"{name}"' for name in sorted(names, key=_export_order)]
    return "\n".join([*lines, *([""] if names else []), *lines_of(Group("__all__ = [", exported, "]"))]) + "\n"


def _about(left_out: Sequence[str]) -> str:
    text = "A wrapper for each operator."
    return f"{text} Without one are those whose tracing PyTorch writes by hand: {', '.join(left_out)}." if left_out else text


def _export_order(name: str) -> tuple[int, list[tuple[int, str | int]]]:
    """How linters sort ``__all__``: constants, then classes, then the others, numbers by their size."""
    first = 0 if len(name) > 1 and name.isupper() else 1 if name[:1].isupper() else 2
    return first, _natural(name)


def _import_order(name: str) -> tuple[int, list[tuple[int, str | int]], str]:
    """How they sort what is imported: the same, whatever the case of letters."""
    return _export_order(name)[0], _natural(name.lower()), name


def _natural(name: str) -> list[tuple[int, str | int]]:
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name) if part]
