"""Made-up ranges of a process, written as they lie in each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from helpers.batches import BASE_NS, MAIN_THREAD, make_batch
from otel_recfn.model.batch import Track
from otel_recfn.model.events import make_event_id
from otel_recfn.report.process import Process


class Ran(NamedTuple):
    """A range, microseconds, what ran in it one after the other, and other columns."""

    name: str
    us: int
    inside: tuple[Any, ...] = ()
    columns: dict[str, Any] = {}  # noqa: RUF012


def process(*ran: Ran, label: str = "", pause_us: int = 0, thread: Track = MAIN_THREAD) -> Process:
    """They ran in a thread, one after the other, with pauses between the outermost."""
    rows: list[dict[str, Any]] = []
    start_ns = BASE_NS
    for each in ran:
        _add(rows, each, 0, start_ns, [len(rows)], thread)
        start_ns += (each.us + pause_us) * 1000
    return Process(label, make_batch(rows))


def _add(
    rows: list[dict[str, Any]],
    ran: Ran,
    parent: int,
    start_ns: int,
    begun: list[int],
    thread: Track,
) -> None:
    begun[0] += 1
    event_id = make_event_id(thread.number, begun[0])
    child_ns = start_ns
    for child in ran.inside:
        _add(rows, child, event_id, child_ns, begun, thread)
        child_ns += child.us * 1000
    times = {"start_ns": start_ns, "end_ns": start_ns + ran.us * 1000}
    rows.append(
        {
            "name": ran.name,
            "event_id": event_id,
            "parent": parent,
            "thread": thread,
            **times,
            **ran.columns,
        }
    )
