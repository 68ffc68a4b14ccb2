"""The spans that a program exports, as text without times and ids.

``PYTHONPATH=tests python tests/laws/golden_spans.py [PROGRAM ...]`` writes the golden files.

    request                                       a span, and the spans in it
      part 1 | recfn.scope='USER_SCOPE'           its attributes, in order of their names
        2 x aten::ones | recfn.scope='FUNCTION'   two spans that don't differ, nor do those in them
        aten::mul | recfn.scope='FUNCTION'
          -> request / part 0                     a link: the names on the way to the linked span

Roots, and spans below one span, are in order of their texts. Each range is a span: which ranges are
folded depends on how long they take.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from helpers.pauses import without_pauses
from otel_recfn import OtelRecordFunctionInstrumentor

FOLDER = Path(__file__).parent / "golden"
DIFFERENT_EACH_TIME = re.compile(
    r"recfn\.(event_id|node_id|handle|sequence_nr|thread_id|forward_thread_id|.*_ns|.*\.top)"
    r"|thread\.id|code\.line\.number|aggregation\..*_ns|code\.file\.path"
)
"""The attributes that are times, ids, what took most of the time, or where this folder's files
are.
"""


def exported(program: Any) -> list[ReadableSpan]:
    """The spans of a program of which each range is one."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    prepared = program.prepare()
    instrumentor = OtelRecordFunctionInstrumentor()
    with without_pauses():
        instrumentor.instrument(tracer_provider=provider, detail="all")
        try:
            program.run(provider.get_tracer("program"), prepared)
        finally:
            instrumentor.uninstrument()
    provider.shutdown()
    return list(exporter.get_finished_spans())


def as_text(spans: Sequence[ReadableSpan]) -> str:
    """The forest of these spans."""
    by_id = {span.context.span_id: span for span in spans}
    below = defaultdict[int | None, list[ReadableSpan]](list)
    for span in spans:
        is_root = span.parent is None or span.parent.span_id not in by_id
        below[None if is_root else span.parent.span_id].append(span)

    def path(span_id: int) -> str:
        span = by_id.get(span_id)
        if span is None:
            return "(a span that wasn't exported)"
        return (
            f"{path(span.parent.span_id)} / {span.name}" if span.parent is not None else span.name
        )

    def lines(span: ReadableSpan) -> list[str]:
        linked = sorted(f"-> {path(link.context.span_id)}" for link in span.links)
        within = [*linked, *forest(below[span.context.span_id])]
        return [_own(span, by_id), *["  " + line for line in within]]

    def forest(siblings: Iterable[ReadableSpan]) -> list[str]:
        found = Counter("\n".join(lines(span)) for span in siblings)
        texts = sorted(found.items())
        return [
            line
            for text, count in texts
            for line in (text if count == 1 else f"{count} x {text}").splitlines()
        ]

    return "\n".join(forest(below[None])) + "\n"


def _own(span: ReadableSpan, exported: Collection[int]) -> str:
    """What a span says but its times and ids. ``exported`` has the ids of all spans that were."""
    attributes = span.attributes or {}
    shown = [
        f"{name}={attributes[name]!r}"
        for name in sorted(attributes)
        if not DIFFERENT_EACH_TIME.fullmatch(name)
    ]
    failed = [f"status {span.status.status_code.name}"] if not span.status.is_unset else []
    remote = (
        ["below a remote span"]
        if span.parent is not None and span.parent.span_id not in exported
        else []
    )
    events = [f"event {event.name}" for event in span.events]
    return " | ".join([span.name, *remote, *failed, *([" ".join(shown)] if shown else []), *events])


def recorded(program: Any) -> str:
    """What the golden file of a program says."""
    return as_text(exported(program))


def main(names: Sequence[str]) -> None:
    """Write the golden files of these programs, or of all."""
    from programs import PROGRAMS

    FOLDER.mkdir(exist_ok=True)
    for name in names or PROGRAMS:
        (FOLDER / f"{name}.txt").write_text(recorded(PROGRAMS[name]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
