"""Stacks in the format of flame graph tools: a line for each, the outermost frame first.

    train.py(12): train;train.py(30): step 1234

The number at the end is the time that the stack was innermost for, in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from otel_recfn.batches.profiled_event import ProfiledEvent

STACK_METRICS = (
    "self_cpu_time_total",
    "self_cuda_time_total",
    "self_xpu_time_total",
    "self_privateuse1_time_total",
)
"""The metrics by which torch.profiler exports stacks: the CPU's, and those of devices."""
_SUBSTITUTES = str.maketrans(" ;\t", "___")
"""The characters that frames may not have in this format, and their substitutes."""


def stack_lines(events: Iterable[ProfiledEvent]) -> list[str]:
    """The stacks of these events, with the microseconds that each was innermost for; without those
    of less than one.
    """
    lines = []
    for event in events:
        us = event.self_ns // 1000
        if event.stack and us > 0:
            frames = event.stack.translate(_SUBSTITUTES).splitlines()
            lines.append(f"{';'.join(reversed(frames))} {us}\n")
    return lines
