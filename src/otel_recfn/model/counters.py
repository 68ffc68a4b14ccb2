"""The counters of a capture, which show whether anything was lost, where, and why.

    recorded + added = exported + folded + unsampled + failed + waiting + all of
    ``dropped.<reason>``

``added`` are spans of no single range: roots of traces, sums, ranges that are open for long. A
step's span, which the program's provider hands on, is ``exported``. ``incomplete`` ranges lack
their end, name, shapes or stack, and are among the others. Losses of other sinks are
``<sink>.dropped.<reason>``.
"""

from __future__ import annotations

from collections.abc import Mapping

SETTLED = ("exported", "folded", "unsampled", "failed")
DROPPED = ("dropped.buffer_full", "dropped.queue_full", "dropped.shutdown", "dropped.error")
OUTCOMES = (*SETTLED, *DROPPED)
NEVER_SEALED = ("unsampled", "dropped.buffer_full", "dropped.error")
"""The recorder's counters of ranges that came to no sink."""


def balanced_counters(
    rows: int, recorder: Mapping[str, int], sinks: Mapping[str, int]
) -> dict[str, int]:
    """The counters of a capture.

    Args:
        rows: that were handed to its sinks.
        recorder: what became of ranges there, by the names above.
        sinks: the same of its sinks, by ``<sink>.<name>``.
    """
    own = {name.removeprefix("spans."): count for name, count in sinks.items()}
    has_spans = "exported" in own
    names = (
        ("added", *OUTCOMES, "incomplete")
        if has_spans
        else ("dropped.buffer_full", "dropped.error", "incomplete")
    )
    never_sealed = sum(recorder.get(name, 0) for name in NEVER_SEALED)
    counts = {"recorded": own.pop("recorded", rows) + never_sealed}
    counts |= {name: own.pop(name, 0) + recorder.get(name, 0) for name in names}
    if has_spans:
        counts["waiting"] = (
            counts["recorded"] + counts["added"] - sum(counts[name] for name in OUTCOMES)
        )
    return counts | own


def is_loss(name: str) -> bool:
    """Whether a counter counts what was lost."""
    return name in ("failed", "incomplete") or "dropped." in name


def losses(counters: Mapping[str, int]) -> dict[str, int]:
    """The counters of losses among these that aren't 0."""
    return {name: count for name, count in counters.items() if count and is_loss(name)}
