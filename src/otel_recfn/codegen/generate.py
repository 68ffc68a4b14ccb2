"""From a schema file to modules on disk, which are only written when they changed, and never over what somebody else wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_recfn.codegen.hints import ANY, TORCH
from otel_recfn.codegen.rules import Wrapping, facts_of, rules_of
from otel_recfn.codegen.schemas import operators_of, read_entries
from otel_recfn.codegen.shards import MARK, Request, texts
from otel_recfn.codegen.wrapper_text import Wrapper
from otel_recfn.model.errors import GeneratorError


@dataclass(frozen=True)
class Generated:
    """What came of a request."""

    texts: dict[str, str]
    """By file name."""
    wrapped: int
    traced: int
    """How many of these are recorded in graphs."""
    left_out: list[str]
    """Operators without a wrapper, because PyTorch's tracing of them is written by hand."""


def generate(request: Request) -> Generated:
    """Read the schemas and make the modules' texts.

    Raises:
        SchemaError: an operator's schema can't be read or wrapped.
        GeneratorError: torchgen or PyYAML is missing.
        OSError: the file can't be read.
    """
    words = ANY if request.dispatch else TORCH
    found = [(each, facts_of(each, rules_of(each.name.namespace))) for each in operators_of(read_entries(request.schema))]
    wrappers = [Wrapper(operator, facts, words) for operator, facts in found if facts.wrapping is not Wrapping.LEFT_OUT]
    left_out = [str(operator.name) for operator, facts in found if facts.wrapping is Wrapping.LEFT_OUT]
    traced = sum(each.facts.wrapping is Wrapping.TRACED for each in wrappers)
    return Generated(texts(wrappers, left_out, request), len(wrappers), traced, left_out)


def stale_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """The files that are missing, differ, or were written for a shard that is no more.

    Raises:
        GeneratorError: one of them was not written by the generator.
        OSError: one can't be read.
    """
    changed = [folder / name for name, text in texts.items() if _content(folder / name) != text]
    return sorted([*changed, *(path for path in _ours(folder) if path.name not in texts)])


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write what is stale, and remove shards that are no more. Returns the files that changed.

    Raises:
        GeneratorError: a file is there that was not written by the generator.
        OSError: one can't be read or written.
    """
    stale = stale_files(folder, texts)
    folder.mkdir(parents=True, exist_ok=True)
    for path in stale:
        if path.name in texts:
            _replace(path, texts[path.name])
        else:
            path.unlink()
    return stale


def _content(path: Path) -> str | None:
    """What is in the file; None where it is not there."""
    if not path.exists():
        return None
    text = _read(path)
    if text.strip() and not text.startswith(MARK):
        raise GeneratorError(f"{path} was not written by otel-recfn codegen; choose another directory with --out, or remove it")
    return text


def _ours(folder: Path) -> list[Path]:
    """The shards that lie there."""
    return [path for path in folder.glob("wrappers_*.py") if path.is_file() and _read(path).startswith(MARK)]


def _read(path: Path) -> str:
    """The text, whatever the encoding of a file that isn't ours."""
    return path.read_text(encoding="utf-8", errors="replace")


def _replace(path: Path, text: str) -> None:
    """In one step, so that no program imports half a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
