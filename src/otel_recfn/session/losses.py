"""Log messages about losses: the count, its likely cause, and the way out."""

from __future__ import annotations

from collections.abc import Mapping

from otel_recfn.support.logs import log

_REASONS: Mapping[str, str] = {
    "dropped.buffer_full": (
        "threads recorded more between two drains than their buffers hold, or nested deeper than is"
        " followed; raise buffer_bytes, or record fewer scopes"
    ),
    "dropped.queue_full": (
        "the backend is slower than the program, or down; lower ordinary_span_budget or"
        " spans_per_second, sample less, or speed up the exporter"
    ),
    "dropped.shutdown": (
        "they were not sent within exit_timeout_s at exit; call flush() earlier, raise"
        " exit_timeout_s, or use a faster backend"
    ),
    "dropped.error": "there was no memory for them, or what takes them failed; see the error above",
    "dropped.store_full": "more ran than is kept; raise max_events, or record a shorter time",
    "failed": "the backend refused them; see the errors above, and whether it is up",
    "incomplete": "too many ranges ended on other threads at once, before they were read",
    "chrome_trace.dropped.queue_full": (
        "the disk is slower than the program; record less, or write to another disk"
    ),
    "chrome_trace.dropped.error": (
        "the file could not be written, or was deleted; see the log above, and whether the disk is "
        "full"
    ),
}
"""The likely cause and the way out, by counter or by the part of it after the sink's name."""


def log_losses(lost: Mapping[str, int]) -> None:
    """Log, when a capture has ended, what was lost while it ran."""
    for name, count in lost.items():
        log.warning("otel-recfn lost %s=%d: %s", name, count, reason(name))


def reason(name: str) -> str:
    """The likely cause of a counter of losses, and the way out."""
    return _REASONS.get(name) or _REASONS.get(name.partition(".")[2], "see the log")
