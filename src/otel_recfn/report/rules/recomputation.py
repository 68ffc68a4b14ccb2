"""The rule about activation checkpointing: a backward pass runs parts of the forward pass again.

forward    ─[ nn.Module: Block_0   ]──[ nn.Module: Block_1   ]──
backward   ─[ evaluate_function: CheckpointFunctionBackward                   ]──
              [ nn.Module: Block_1   ]  again    [ evaluate_function: ...   ]

A checkpoint of a function has no module. Without ``use_reentrant`` it has no node either, and the
first node that needs a tensor of the function computes it again. It does so with gradients, so that
these operators have sequence numbers. Those of the node itself have none, unless the program asked
for gradients of gradients; then all have them.

forward    ─[ sin 7 ][ mul 8 ]──
backward   ─[ MulBackward0                        ]──[ SinBackward0  ]──
              [ sin 9 ][ mul 10 ] again   [ mul ]      [ cos ][ mul ]
"""

from __future__ import annotations

import numpy as np

from otel_recfn.batches.number_sets import Indices, distinct, is_in, nearest
from otel_recfn.model.events import NODES_PREFIX
from otel_recfn.report.finding import CALLERS, Finding, finding_about
from otel_recfn.report.kinds import BACKWARD, BLOCK, MODULE, OPERATOR
from otel_recfn.report.labels import call_count, duration, shorten
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.recording import Recording

SERIOUS_STEP_SHARE = 1 / 3
"""The minimum share of the steps for a serious finding. Who checkpoints a whole model pays one more
forward pass, which is a quarter of a step with a backward pass twice as long as the forward one.
What takes more is repeated more than once, or is cheap in memory and dear in time.
"""
CHECKPOINT_NODE = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint, which may call a function without modules."""
NODE_NAMES = (NODES_PREFIX, "torch::autograd::")
"""The beginnings of the names of nodes that would else be those of operators."""
WITHOUT_TENSORS = ("aten::arange", "aten::empty", "aten::full", "aten::ones", "aten::zeros")
"""The beginnings of the names of operators that have no sequence number, as they are given no
tensors.
"""
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
            f"{_forward_caller(recording, ranges)}"
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
    is_repeated |= _called_by_checkpoint_nodes(recording) | _computed_with_gradients(recording)
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


def _computed_with_gradients(recording: Recording) -> Mask:
    """Whether each range is an outermost operator of a forward pass that a backward node calls with
    gradients, and works without them itself.
    """
    node = _nodes(recording)
    is_operator = _are_operators(recording)
    outermost = is_operator & (node >= 0) & ~is_operator[recording.parent]
    numbered = is_operator & (_sequence_numbers(recording) >= 0)
    is_forward = np.zeros(len(recording.labels), np.bool_)
    is_forward[distinct(recording.label[numbered & (node < 0)])] = True
    # Under autocast an operator has no number, but those that it calls have.
    with_gradients = np.zeros(len(recording), np.bool_)
    with_gradients[nearest(recording.parent, outermost)[numbered & (node >= 0)]] = True
    without = outermost & ~with_gradients
    without &= ~recording.has_name(lambda name: name.startswith(WITHOUT_TENSORS))
    works_without = np.zeros(len(recording), np.bool_)
    works_without[node[without]] = True
    return np.asarray(with_gradients & works_without[node] & is_forward[recording.label])


def _are_operators(recording: Recording) -> Mask:
    """Whether each range is an operator; nodes of a backward pass are none."""
    names = recording.has_name(lambda name: "::" in name and not name.startswith(NODE_NAMES))
    return np.asarray((recording.kind == OPERATOR) & recording.takes_thread_time & names)


def _nodes(recording: Recording) -> Indices:
    """The innermost node of a backward pass around each range; -1 if there is none."""
    parent = recording.parent
    if not len(parent):
        return parent
    return np.where(parent >= 0, nearest(parent, recording.kind == BACKWARD)[parent], -1)


def _sequence_numbers(recording: Recording) -> Numbers:
    return np.asarray(recording.processes[0].batch.sequence_nr[recording.row])


def _forward_caller(recording: Recording, ranges: Indices) -> str:
    """The sentence that names the module or block whose forward pass had called the operators among
    these ranges; empty if there are none, or if it isn't known.
    """
    operators = ranges[recording.kind[ranges] == OPERATOR]
    caller = _forward_callers(recording, operators)
    operators, caller = operators[caller >= 0], caller[caller >= 0]
    if not len(operators):
        return ""
    main = recording.main_path(caller, recording.total_ns[operators])
    first = int(caller[recording.path[caller] == main][0])
    return f" `{shorten(recording.module_or_name(first))}` had called them in the forward pass."


def _forward_callers(recording: Recording, operators: Indices) -> Indices:
    """The module or block that had called each of these operators of backward nodes in the forward
    pass; -1 if it isn't known.

    The node has the sequence number of the operator of the forward pass that made it.
    """
    numbers = _sequence_numbers(recording)
    node = _nodes(recording)
    wanted = numbers[node[operators]]
    is_forward = (node < 0) & (recording.kind != BACKWARD) & (numbers >= 0)
    forward = np.flatnonzero(is_forward & is_in(numbers, wanted))
    forward = forward[np.argsort(recording.start_ns[forward], kind="stable")]
    is_caller = is_in(recording.kind, CALLERS) & ~recording.is_step
    callers = dict(
        zip(numbers[forward].tolist(), recording.nearest(forward, is_caller).tolist(), strict=True)
    )
    return np.array([callers.get(number, -1) for number in wanted.tolist()], np.int64)
