"""The rule about compilations of ``torch.compile``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from otel_recfn.batches.number_sets import Indices
from otel_recfn.report.finding import MIN_SHARE, SERIOUS_SHARE, Finding, finding_about
from otel_recfn.report.kinds import COMPILATIONS
from otel_recfn.report.recording import Recording

LONGEST_REASON = 300
"""The maximum number of characters that are shown of a reason."""
KEEP_THE_SAME = (
    "Keep what the reason names the same in every call, or let it vary:"
    " torch.compile(dynamic=True), mark_dynamic(), a tensor in place of a number."
)
WARM_UP = "First calls cost this once: call the model before you measure it."
_COMPILED_AGAIN = re.compile(r"Torch-Compiled Region: \d+/[1-9]\d*")


def compiles(recording: Recording) -> Finding | None:
    """The finding that torch.compile compiles again, for other inputs; or for the first time,
    which is no fault.
    """
    ranges = recording.outermost(lambda name: name.startswith(COMPILATIONS))
    attributes = [
        json.loads(recording.text_in_column("attributes", position) or "{}")
        for position in ranges.tolist()
    ]
    reasons = [str(each.get("recfn.compile.reason", "")) for each in attributes]
    again = _compiled_again(recording, ranges, attributes, reasons)
    fault_share = recording.run_share(again, recording.total_ns[again])
    is_fault = len(again) > 1 and fault_share >= MIN_SHARE
    blamed = again if is_fault else ranges
    text = f"torch.compile compiled {len(ranges)} times"
    text += f", {len(again)} of them what it had compiled before." if len(again) else "."
    text += _most_frequent("Most often because: ", reasons)
    text += _most_frequent("A graph break: ", _graph_breaks(attributes))
    return finding_about(
        recording,
        blamed,
        recording.total_ns[blamed],
        rule="compile",
        title="Compiles again and again" if is_fault else "Compiles",
        text=text,
        next_step=KEEP_THE_SAME if is_fault else WARM_UP,
        serious=is_fault and fault_share >= SERIOUS_SHARE,
    )


def _compiled_again(
    recording: Recording,
    ranges: Indices,
    attributes: Sequence[dict[str, Any]],
    reasons: Sequence[str],
) -> Indices:
    """The compilations of what was compiled before.

    Ours have a reason. Those in a trace of torch.profiler have no attributes: there the names of
    the compiled code that ran say how often it was compiled again, but not which compilations that
    were, and the first ones stand for them.
    """
    if any(attributes):
        return ranges[[bool(reason) for reason in reasons]]
    names = [name for name in {*recording.names} if _COMPILED_AGAIN.fullmatch(name) is not None]
    return ranges[: len(names)]


def _graph_breaks(attributes: Sequence[dict[str, Any]]) -> list[str]:
    breaks = [each.get("recfn.compile.graph_breaks") for each in attributes]
    return [str(reason) for each in breaks if isinstance(each, list) for reason in each]


def _most_frequent(introduction: str, reasons: Sequence[str]) -> str:
    """A sentence with the most frequent reason, by its first line; empty if there is none."""
    first_lines = [reason.strip().partition("\n")[0] for reason in reasons if reason.strip()]
    counts = Counter([" ".join(line.split()) for line in first_lines])
    found = [reason for reason, _ in counts.most_common(1)]
    return f" {introduction}{found[0][:LONGEST_REASON]}" if found else ""
