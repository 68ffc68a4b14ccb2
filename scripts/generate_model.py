"""Writes what follows from the table of columns and from the enums of the model.

    python scripts/generate_model.py

Run it after a change of ``model/columns.py`` or ``events.py``, and commit what it wrote; a test
says when that was forgotten.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "otel_recfn"
if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGE.parent))

from otel_recfn.model.columns import BY_SIZE, COLUMNS, Column  # noqa: E402
from otel_recfn.model.events import (  # noqa: E402
    LONGEST_TRACE_NS,
    MAX_TRACE_RANGES,
    MIN_WAIT_NS,
    NODES_PREFIX,
    OPTIMIZER,
    OPTIMIZER_STEP,
    ORDINAL_BITS,
    OVERLAPPING,
    PROFILER_STEP,
    SOURCES,
    SOURCES_WITHOUT_SCOPES,
    ContextFlag,
    EventFlag,
    EventSource,
    Extra,
    RecordScope,
    RowKind,
)

ORIGIN = "Written by scripts/generate_model.py; change {} and run it."


def files() -> dict[Path, str]:
    """What is written where."""
    return {
        PACKAGE / "native" / "model" / "columns.hpp": columns_header(),
        PACKAGE / "native" / "model" / "events.hpp": events_header(),
    }


def columns_header() -> str:
    """The table of columns for C++."""
    opened_columns = [column for column in COLUMNS if column.in_opened]
    return f"""// The table of columns. {ORIGIN.format("model/columns.py")}
#pragma once
#include <cstdint>

// Calls one of its parameters for each column, the largest first, so that a row of them has no
// gaps: with its type, its name, what says that there is nothing, the attribute of spans, the
// argument in Chrome traces (both "" where there is none), and whether its text is JSON. Seldom
// columns are written by drains in which some row isn't empty, the others by each; texts index the
// names.
{_macro("RECFN_COLUMNS(NUMBER, TEXT, OPTIONAL_NUMBER, OPTIONAL_TEXT)", map(_column, BY_SIZE))}

// What is told of a top-level range that began.
{_macro("RECFN_OPENED_COLUMNS(X)", map(_typed, opened_columns))}

// Numbers that few begins have.
{_macro("RECFN_PRELUDE_NUMBERS(X)", (_typed(column) for column in COLUMNS if column.in_prelude))}

// Numbers that few ends have.
{_macro("RECFN_END_NUMBERS(X)", (_typed(column) for column in COLUMNS if column.in_end_prelude))}

#define RECFN_NO_COLUMN(...)
#define RECFN_EACH_COLUMN(X) RECFN_COLUMNS(X, X, X, X)
#define RECFN_USUAL_COLUMNS(X) RECFN_COLUMNS(X, X, RECFN_NO_COLUMN, RECFN_NO_COLUMN)
#define RECFN_OPTIONAL_COLUMNS(X) RECFN_COLUMNS(RECFN_NO_COLUMN, RECFN_NO_COLUMN, X, X)
#define RECFN_NUMBER_COLUMNS(X) RECFN_COLUMNS(X, RECFN_NO_COLUMN, X, RECFN_NO_COLUMN)
#define RECFN_TEXT_COLUMNS(X) RECFN_COLUMNS(RECFN_NO_COLUMN, X, RECFN_NO_COLUMN, X)
"""


def _column(column: Column[Any, Any]) -> str:
    kind = ("OPTIONAL_" if column.is_optional else "") + (
        "TEXT" if column.value is str else "NUMBER"
    )
    told = f'"{column.attribute}", "{column.argument}", {str(column.is_json).lower()}'
    return f"  {kind}({column.dtype.__name__}_t, {column.name}, {column.empty}, {told})"


def _typed(column: Column[Any, Any]) -> str:
    return f"  X({column.dtype.__name__}_t, {column.name}, {column.empty})"


def _macro(head: str, body: Iterable[str]) -> str:
    """The definition of a macro, set as clang-format sets it."""
    lines = [f"#define {head}", *body]
    if len(lines) == 2:
        return " ".join(line.strip() for line in lines)
    width = max(map(len, lines[:-1]))
    return "\n".join([*(f"{line:<{width}} \\" for line in lines[:-1]), lines[-1]])


def events_header() -> str:
    """The enums for C++."""
    return f"""// Kinds, flags, sources and scopes of events.
// {ORIGIN.format("model/events.py")}
#pragma once
#include <cstdint>
#include <string_view>

namespace recfn {{

{_enum(RowKind, "uint8_t", "Row")}
// The lowest ones of an event id: which begin of its thread it was. The others are the thread's
// number.
constexpr uint32_t kOrdinalBits = {ORDINAL_BITS};

{_enum(EventFlag, "uint32_t", "")}
// A row with one of these may overlap what is beside it in its thread.
constexpr uint32_t kOverlapping = {OVERLAPPING};

{_enum(EventSource, "uint32_t", "Source")}
{_enum(ContextFlag, "uint64_t", "Context")}
// Sources whose rows are recorded whatever their scope, a bit each.
constexpr uint32_t kSourcesWithoutScopes =
    {_bits(SOURCES_WITHOUT_SCOPES)};

// Of each source, what names of calls of Python code begin with; null where it announces none.
constexpr const char* kCallPrefixes[] = {{{_call_prefixes()}}};

// The beginnings of names of ranges that say where training steps are.
constexpr const char* kOptimizer = {_text(OPTIMIZER)};
constexpr const char* kOptimizerStep = {_text(OPTIMIZER_STEP)};
constexpr const char* kProfilerStep = {_text(PROFILER_STEP)};

// Limits of traces that we start (stage/own_traces.hpp).
constexpr uint32_t kMaxTraceRanges = {MAX_TRACE_RANGES};
constexpr int64_t kLongestTraceNs = {LONGEST_TRACE_NS};

// A shorter time of waiting isn't reported.
constexpr int64_t kMinWaitNs = {MIN_WAIT_NS};

// What PyTorch puts before the name of a backward node to name the range around it.
constexpr std::string_view kNodesPrefix = {_text(NODES_PREFIX)};

{_enum(Extra, "uint32_t", "Extra")}
{_enum(RecordScope, "uint32_t", "Scope")}
constexpr uint32_t kNumScopes = {len(RecordScope)};

// The name of each scope.
// clang-format off
constexpr const char* kScopeNames[kNumScopes] = {{
{_lines(f'    "{scope.name}",' for scope in RecordScope)}
}};

// The name of each source.
constexpr const char* kSourceNames[] = {{
{_lines(f'    "{source.name}",' for source in EventSource)}
}};
// clang-format on

}}  // namespace recfn
"""


def _enum(enum: type[IntEnum | IntFlag], holds: str, suffix: str) -> str:
    # 3.10 lists flags of no bits too.
    members = [member for member in enum if member.value or issubclass(enum, IntEnum)]
    values = _lines(
        f"  {_constant(member.name or '', suffix)} = {int(member)}," for member in members
    )
    return f"enum {enum.__name__} : {holds} {{\n{values}\n}};\n"


def _bits(sources: Iterable[EventSource]) -> str:
    return " | ".join(f"1u << {_constant(source.name, 'Source')}" for source in sorted(sources))


def _call_prefixes() -> str:
    return ", ".join(_text(SOURCES[source].call_prefix) for source in EventSource)


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
