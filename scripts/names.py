"""Counts the names of the source, and the words in them that aren't the field's.

    python scripts/names.py            the table
    python scripts/names.py told held  the names with these words, and where they are

A name is what the source itself binds in Python (functions, classes, arguments, variables,
attributes), and each identifier of the native part. Its words are what lies between underscores
and capitals.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "otel_recfn"

PRIVATE = {
    "told": "told tell tells telling teller",
    "owe": "owe owed owes awaited",
    "rest": "rest rests muted",
    "look": "look looks looked",
    "held": "held hold holds holder",
    "kept": "kept keep keeps",
    "home": "home homes",
    "place": "place places placed spot spots",
    "hand on": "hand hands handed carried",
    "leaf": "leaf leaves",
    "seldom": "seldom rare",
    "of": "of",
    "at": "at",
    "most": "most least",
    "left": "left",
    "above": "above below beside aside",
    "around": "around",
    "shown": "shown show shows",
    "announced": "announced announce coming",
    "fate": "fate fates promised surroundings",
    "given": "given give gives gave",
    "goes on": "goes go",
    "stand in": "stand stands stood",
    "further": "further elsewhere",
    "one": "one it each",
    "lies": "lie lies lay",
}
"""The private words, by family."""

CPP_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|^\s*#\s*include[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
    re.S | re.M,
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words(name: str) -> set[str]:
    """The words of a name."""
    return {word.lower() for word in WORD.findall(name)}


def bound(tree: ast.AST) -> Iterator[str]:
    """The names that a module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def names() -> dict[str, Counter[str]]:
    """How often each name stands in each file."""
    own: set[str] = set()
    occurrences: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".cpp", ".hpp")):
        text = path.read_text(encoding="utf-8")
        file = str(path.relative_to(PACKAGE))
        if path.suffix == ".py":
            own.update(bound(ast.parse(text)))
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            found = [token.string for token in tokens if token.type == tokenize.NAME]
        else:
            found = re.findall(r"[A-Za-z_]\w*", CPP_NOT_CODE.sub(" ", text))
            own.update(found)
        for name in found:
            occurrences[name][file] += 1
    return {name: files for name, files in occurrences.items() if name in own}


def main() -> None:
    """Print the table, or the names with the words that are asked for."""
    found = names()
    asked = set(sys.argv[1:])
    if asked:
        for name in sorted(name for name in found if words(name) & asked):
            files = ", ".join(f"{file} {count}" for file, count in found[name].most_common(5))
            print(f"{name:32} {files}")
        return
    print(f"{len(found)} names\n\n{'words':40} {'names':>6} {'uses':>6}")
    for family in PRIVATE.values():
        hits = [name for name in found if words(name) & set(family.split())]
        uses = sum(found[name].total() for name in hits)
        print(f"{family:40} {len(hits):6} {uses:6}")


if __name__ == "__main__":
    main()
