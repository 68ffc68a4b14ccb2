"""Writes what follows from the table of columns and from the enums of the model.

    python scripts/generate_model.py

Run it after a change of ``model/columns.py``, ``events.py``, ``sources.py`` or ``scope.py``, and commit what it wrote; a test
says when that was forgotten.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "otel_recfn"
if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGE.parent))

from otel_recfn.model.columns import COLUMNS, Column  # noqa: E402
from otel_recfn.model.events import (  # noqa: E402  # noqa: E402
    ORDINAL_BITS,
    OVERLAPPING,
    SOURCES,
    SOURCES_WITHOUT_SCOPES,
    ContextFlag,
    EventFlag,
    EventKind,
    EventSource,
    Extra,
    RecordScope,
)

ORIGIN = "Written by scripts/generate_model.py; change {} and run it."


def files() -> dict[Path, str]:
    """What is written where."""
    return {
        PACKAGE / "model" / "column_fields.py": column_fields(),
        PACKAGE / "native" / "model" / "columns.hpp": columns_header(),
        PACKAGE / "native" / "model" / "events.hpp": events_header(),
    }


def column_fields() -> str:
    """The attributes of a batch and of an event, as type checkers want them spelt."""
    values = sorted({column.value for column in COLUMNS} - {int, str}, key=lambda value: value.__name__)
    origins = {
        module: sorted(v.__name__ for v in values if v.__module__ == module)
        for module in sorted({v.__module__ for v in values})
    }
    return f'''"""The columns as attributes. {ORIGIN.format("model/columns.py")}"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

{_lines(f"from {module} import {', '.join(names)}" for module, names in origins.items())}


@dataclass(frozen=True, eq=False)
class ColumnArrays:
    """A batch's columns."""

{_lines(f"    {column.name}: NDArray[np.{column.dtype.__name__}]" for column in COLUMNS)}


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """What a row says in each of them, with every index resolved."""

{_lines(f'    {column.name}: {column.value.__name__}{chr(10)}    """{column.meaning}"""' for column in COLUMNS)}
'''


def columns_header() -> str:
    """The table of columns for C++."""
    by_size = sorted(COLUMNS, key=_size)
    usual, seldom = [column for column in by_size if not column.seldom], [column for column in by_size if column.seldom]
    tables = (
        ("RECFN_COLUMNS", "Every column.", COLUMNS),
        ("RECFN_USUAL_COLUMNS", "Those that every drain writes, the largest first, so that a row has no gaps.", usual),
        ("RECFN_SELDOM_COLUMNS", "Those that a drain writes where some row isn't empty, the largest first.", seldom),
        ("RECFN_ANNOUNCED_COLUMNS", "What is told of a top-level range that began.", [c for c in COLUMNS if c.announced]),
        ("RECFN_USUAL_TEXT_COLUMNS", "Those that index the names, of the usual ones.", [c for c in usual if c.value is str]),
        ("RECFN_SELDOM_TEXT_COLUMNS", "And of the others.", [c for c in seldom if c.value is str]),
    )
    return f"""// The table of columns. {ORIGIN.format("model/columns.py")}
//
// Each macro calls X(type, name, what says that there is nothing) for each of its columns.
#pragma once
#include <cstdint>

{_lines(f"// {meaning}{chr(10)}#define {name}(X){_calls(columns)}{chr(10)}" for name, meaning, columns in tables).rstrip()}
"""


def events_header() -> str:
    """The enums for C++."""
    return f"""// Kinds, flags, sources and scopes of events.
// {ORIGIN.format("model/events.py, sources.py or scope.py")}
#pragma once
#include <cstdint>

namespace recfn {{

{_enum(EventKind, "uint8_t", "Event")}
// The lowest ones of an event id: which begin of its thread it was. The others are the thread's number.
constexpr uint32_t kOrdinalBits = {ORDINAL_BITS};

{_enum(EventFlag, "uint32_t", "")}
// A row with one of these may overlap what is beside it in its thread.
constexpr uint32_t kOverlapping = {OVERLAPPING};

{_enum(EventSource, "uint32_t", "Source")}
{_enum(ContextFlag, "uint64_t", "Context")}
// Sources whose rows are recorded whatever their scope, a bit each.
constexpr uint32_t kSourcesWithoutScopes = {_bits(SOURCES_WITHOUT_SCOPES)};

// Of each source, what names of calls of Python code begin with; null where it announces none.
constexpr const char* kCallPrefixes[] = {{{", ".join(_text(SOURCES[source].call_prefix) for source in EventSource)}}};

{_enum(Extra, "uint32_t", "Extra")}
{_enum(RecordScope, "uint32_t", "Scope")}
constexpr uint32_t kNumScopes = {len(RecordScope)};

// Of each scope.
constexpr const char* kScopeNames[kNumScopes] = {{
{_lines(f'    "{scope.name}",' for scope in RecordScope)}
}};

}}  // namespace recfn
"""


def _size(column: Column) -> int:
    return -np.dtype(column.dtype).itemsize


def _calls(columns: Iterable[Column]) -> str:
    return "".join(f" \\\n  X({column.dtype.__name__}_t, {column.name}, {column.empty})" for column in columns)


def _enum(enum: type[IntEnum | IntFlag], holds: str, suffix: str) -> str:
    members = [member for member in enum if member.value or issubclass(enum, IntEnum)]  # 3.10 lists flags of no bits too
    values = _lines(f"  {_constant(member.name or '', suffix)} = {int(member)}," for member in members)
    return f"enum {enum.__name__} : {holds} {{\n{values}\n}};\n"


def _bits(sources: Iterable[EventSource]) -> str:
    return " | ".join(f"1u << {_constant(source.name, 'Source')}" for source in sorted(sources))


def _text(text: str | None) -> str:
    return "nullptr" if text is None else json.dumps(text)


def _constant(name: str, suffix: str) -> str:
    words = "".join(word.capitalize() for word in name.split("_"))
    return f"k{words.removesuffix(suffix)}{suffix}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def main(say: Callable[[str], object] = print) -> None:
    """Writes the files that aren't as they should be."""
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            say(f"wrote {path}")


if __name__ == "__main__":
    main()
