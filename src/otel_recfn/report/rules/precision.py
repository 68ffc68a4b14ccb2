"""The rule about operators that compute in float64, which is known only if dtypes are recorded."""

from __future__ import annotations

import numpy as np

from otel_recfn.report.finding import Finding, finding_about
from otel_recfn.report.kinds import COPIES, OPERATOR, SYNCS
from otel_recfn.report.labels import duration
from otel_recfn.report.nesting import Mask
from otel_recfn.report.recording import Recording

DOUBLES = ('"float64"', '"double"', '"complex128"')
SINGLES = ('"float32"', '"float"', '"float16"', '"bfloat16"', '"complex64"')
"""The dtypes of inputs, by this package and by PyTorch."""
NEXT_STEP = (
    "Make it float32 where it comes from: arrays of NumPy and numbers of Python are float64 unless"
    " a dtype is given (dtype=torch.float32, .float())."
)


def computes_in_double(recording: Recording) -> Finding | None:
    """The finding that operators compute in float64.

    It isn't serious if all of them do: then the program wants it.
    """
    is_double = _has_input(recording, DOUBLES)
    ranges = recording.outermost(lambda name: "::" in name)
    ranges = ranges[(recording.kind[ranges] == OPERATOR) & is_double[ranges]]
    computes = ~recording.has_name(lambda name: name in COPIES or name in SYNCS)
    ranges = ranges[computes[ranges]]
    times = recording.total_ns[ranges] - recording.device_call_times(ranges)
    has_others = bool((_has_input(recording, SINGLES) & ~is_double & computes).any())
    return finding_about(
        recording,
        ranges,
        times,
        rule="double",
        title="Computes in float64",
        text=(
            f"{len(ranges):,} operators were given tensors of float64, and took"
            f" {duration(float(times.sum()))}; most of it was {{most}}. In float32 they need half"
            " the memory, and at most half the time."
        ),
        next_step=NEXT_STEP,
        serious=None if has_others else False,
    )


def _has_input(recording: Recording, dtypes: tuple[str, ...]) -> Mask:
    """Whether each range has an input of one of these dtypes."""
    batch = recording.processes[0].batch
    has_any = [any(dtype in text for dtype in dtypes) for text in batch.names]
    return np.asarray(np.array(has_any, np.bool_)[batch.dtypes[recording.row]])
