"""The rule about activation checkpointing: a backward pass runs parts of the forward pass again.

forward    ─[ nn.Module: Block_0   ]──[ nn.Module: Block_1   ]──
backward   ─[ evaluate_function: CheckpointFunctionBackward                   ]──
              [ nn.Module: Block_1   ]  again    [ evaluate_function: ...   ]
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.number_sets import Indices, distinct, nearest
from otel_recfn.report.finding import Finding, finding_about
from otel_recfn.report.kinds import BACKWARD, BLOCK, MODULE, OPERATOR
from otel_recfn.report.labels import call_count, duration
from otel_recfn.report.nesting import Mask
from otel_recfn.report.recording import Recording

SERIOUS_STEP_SHARE = 1 / 3
"""The minimum share of the steps for a serious finding. Who checkpoints a whole model pays one more
forward pass, which is a quarter of a step with a backward pass twice as long as the forward one.
What takes more is repeated more than once, or is cheap in memory and dear in time.
"""
CHECKPOINT_NODE = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint, which may call a function without modules."""
FEWER_CHECKPOINTS = (
    "Checkpoint fewer modules: those that need most memory for their time, not one inside of"
    " another. A smaller batch, or bfloat16, may need no checkpoints at all."
)


def recomputes(recording: Recording) -> Finding | None:
    """The finding that backward passes run parts of the forward pass again."""
    ranges = _recomputed(recording)
    times = recording.total_ns[ranges]
    step_share = recording.step_share(ranges, times)
    steps = f", {step_share:.0%} of the steps' time" if recording.step_ns else ""
    return finding_about(
        recording,
        ranges,
        times,
        rule="recompute",
        title="Recomputes what checkpoints dropped",
        text=(
            f"Backward passes ran parts of the forward pass again, {call_count(len(ranges))} in"
            f" {duration(float(times.sum()))}{steps}; most of it was {{most}}."
        ),
        next_step=FEWER_CHECKPOINTS,
        serious=step_share >= SERIOUS_STEP_SHARE,
    )


def _recomputed(recording: Recording) -> Indices:
    """The outermost ranges in backward passes that are parts of a forward pass: calls of modules,
    blocks that ran outside of a backward pass, too, and what a checkpoint's node calls.
    """
    in_backward = _is_inside(recording, recording.kind == BACKWARD)
    is_block = recording.kind == BLOCK
    is_forward = np.zeros(len(recording.labels), np.bool_)
    is_forward[distinct(recording.label[is_block & ~in_backward])] = True
    is_repeated = in_backward & (recording.kind == MODULE)
    is_repeated |= in_backward & is_block & is_forward[recording.label]
    is_repeated &= recording.takes_thread_time
    is_repeated |= _called_by_checkpoint_nodes(recording)
    return np.flatnonzero(is_repeated & ~_is_inside(recording, is_repeated))


def _is_inside(recording: Recording, mask: Mask) -> Mask:
    """Whether each range is inside of one in the mask, whatever thread that is in."""
    if not len(recording):
        return mask
    parent = recording.parent
    return np.asarray((parent >= 0) & (nearest(parent, mask)[parent] >= 0))


def _called_by_checkpoint_nodes(recording: Recording) -> Mask:
    is_node = recording.has_name(CHECKPOINT_NODE.__eq__)
    parent = recording.parent
    is_operator = (recording.kind == OPERATOR) & recording.takes_thread_time
    return np.asarray(is_operator & (parent >= 0) & is_node[parent])
