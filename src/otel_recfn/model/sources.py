"""What differs from source to source: each one's line in a table, so that no code asks for a source by its name."""

from __future__ import annotations

from dataclasses import dataclass

from otel_recfn.model.events import EventSource


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """Of the rows of a source."""

    by_scope: bool = True
    """Scopes select them. Else a capture asks for all of them or for none, and their scope is just said."""
    call_prefix: str | None = None
    """What names of calls of Python code begin with, before what is called; None: the source announces no such calls."""
    trace_name: str = ""
    """What a trace of our own is called that begins with one of them; empty: after its thread. ``{}`` stands for the name after
    ``call_prefix``."""
    begins_traces: bool = False
    """Each of its ranges at top level, but an optimizer's step, begins a trace, which is called after it."""


SOURCES: dict[int, SourceTraits] = {
    EventSource.TORCH: SourceTraits(),
    EventSource.RECORD_FUNCTION: SourceTraits(),
    EventSource.MODULE: SourceTraits(
        by_scope=False, call_prefix="nn.Module: ", trace_name="module call: {}", begins_traces=True
    ),
    EventSource.STEP: SourceTraits(by_scope=False, trace_name="{}", begins_traces=True),
    EventSource.PYTHON_CALL: SourceTraits(by_scope=False, call_prefix=""),
}

OPTIMIZER, OPTIMIZER_STEP = "Optimizer.", "Optimizer.step#"
"""How the names of ranges begin in which optimizers work (``zero_grad``, too), and in which they step."""

UNNAMED_STEP = "step"
"""What a step is called that the program gave no name."""

SOURCES_WITHOUT_SCOPES = frozenset(source for source, traits in SOURCES.items() if not traits.by_scope)


def is_call(source: int, name: str) -> bool:
    """Whether a range of that source and name is a call of Python code."""
    prefix = SOURCES[source].call_prefix
    return prefix is not None and name.startswith(prefix)


def trace_name(source: int, name: str) -> str:
    """What a trace of our own is called that begins with a range of that source and name; empty: after its thread."""
    traits = SOURCES[source]
    return traits.trace_name.format(name.removeprefix(traits.call_prefix or ""))
