"""The tree of the modules of a model, each with its part of forward and backward passes.

A range counts to the innermost of these that it is, or is in:

    a call of a module         that module
    a node of a backward pass  the module that the node's forward range counts to
    an optimizer's step, the loader of data, the accumulation of gradients: a line of its own

If it is in none of them, it counts to "(in no module)". What an optimizer's closure does is beside
its step: modules that it calls, and what runs with gradients on, as optimizers work without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from otel_recfn import _native
from otel_recfn.batches.call_paths import Amounts, PathSums, Ranges, call_paths, range_sums
from otel_recfn.batches.call_tree import CallTree
from otel_recfn.batches.forward_links import find_links
from otel_recfn.batches.number_sets import Indices, equals, nearest
from otel_recfn.batches.span_names import class_in_name, path_below
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import NODES_PREFIX, OPTIMIZER, EventSource

OUTSIDE = "(in no module)"
ACCUMULATION = "(accumulation of gradients)"
ACCUMULATES = NODES_PREFIX + "torch::autograd::AccumulateGrad"
"""The range that adds to a parameter's gradient: no forward operator has its number."""
OWN_LINE_PREFIXES = (OPTIMIZER, "enumerate(DataLoader)#")
"""The beginnings of names of PyTorch's ranges that are no module's."""
MAX_DERIVATIVES = 8
"""The maximum number of nodes in a row: a node's forward range may be in a node itself, if a
derivative is derived again.
"""

Mask = NDArray[np.bool_]


def module_tree(batch: Batch, ranges: Ranges, lost: Mapping[str, int] | None) -> CallTree:
    """The tree of the modules that were called.

    The time of each is that of the ranges that count to it or below it.
    """
    names, label, is_line = _labels(batch, ranges.rows)
    forward = _forward_ranges(batch, ranges)
    is_node = (forward >= 0) & ~is_line
    # The line or node around each range. In an optimizer's closure there is none.
    near = _nearest(ranges.parent, is_line | is_node)
    in_closure = ~(is_line | is_node) & _in_closure(batch, ranges.rows, near)
    near = _nearest(ranges.parent, is_line | is_node | in_closure)
    near[(near >= 0) & in_closure[near]] = -1
    itself = np.where(is_line | is_node, np.arange(len(near)), np.where(in_closure, -1, near))
    counted_in = _counted_lines(itself, forward, is_node)
    # The tree has the lines, and the ranges that are in none of them.
    outside = counted_in < 0
    displayed = np.flatnonzero(is_line | outside)
    position = np.full(len(near) + 1, -1, np.int64)  # the last entry is for ranges at the top
    position[displayed] = np.arange(len(displayed))
    enclosing = _enclosing_calls(batch, ranges.rows, near, counted_in, is_node, label)
    paths = call_paths(position[enclosing[displayed]], label[displayed])
    path = paths.row_path[position[np.where(outside, np.arange(len(near)), counted_in)]]
    durations = np.where(outside, ranges.self_ns, ranges.durations)
    sums = range_sums(path, len(paths.parent), ranges, durations, is_line | outside)
    backward = np.where(itself != counted_in, ranges.self_ns, 0)
    return CallTree(
        paths.parent, paths.label, names, _inclusive_sums(sums, path, paths.parent, backward), lost
    )


def _labels(batch: Batch, rows: Indices) -> tuple[list[str], Indices, Mask]:
    """The names of lines; the number of each range's name; and whether it has a line: the others
    are in no module.

    A call has the rest of its path in the model below the call around it, also if that is a number,
    or the name of its class if it is outermost.
    """
    own = [_own_line(name) for name in batch.names]
    has_own = np.take(np.array([bool(line) for line in own], np.bool_), batch.name[rows])
    is_line = has_own | equals(batch.source[rows], EventSource.MODULE)
    numbers = {OUTSIDE: 0}
    label = np.zeros(len(rows), np.int64)
    for position in np.flatnonzero(is_line).tolist():
        row = rows[position]
        name = int(batch.name[row])
        path = batch.names[batch.module[row]]
        text = (
            own[name]
            or path_below(path, batch.names[batch.enclosing_module[row]])
            or class_in_name(batch.names[name])
            or batch.names[name]
        )
        label[position] = numbers.setdefault(text, len(numbers))
    return list(numbers), label, is_line


def _own_line(name: str) -> str:
    if name == ACCUMULATES:
        return ACCUMULATION
    return name if name.startswith(OWN_LINE_PREFIXES) else ""


def _in_closure(batch: Batch, rows: Indices, near: Indices) -> Mask:
    """Whether each range that counts to an optimizer so far is work of the program's: an operator
    with gradients on has a sequence number, and a backward pass has a range around each node.
    """
    is_optimizer = _have_prefix(batch, rows, OPTIMIZER)
    with_gradients = (batch.sequence_nr[rows] >= 0) | _have_prefix(batch, rows, NODES_PREFIX)
    return np.asarray((near >= 0) & is_optimizer[near] & with_gradients, np.bool_)


def _have_prefix(batch: Batch, rows: Indices, beginning: str) -> Mask:
    is_named = np.array([name.startswith(beginning) for name in batch.names], np.bool_)
    return np.take(is_named, batch.name[rows])


def _forward_ranges(batch: Batch, ranges: Ranges) -> Indices:
    """The forward range of each node of a backward pass, -1 for others.

    The range around a node counts as one, too.
    """
    links = find_links(_native.ForwardRanges(), batch, np.zeros(len(batch.tracks), np.uint64))
    forward = np.full(len(ranges.rows), -1, np.int64)
    ids = batch.event_id[ranges.rows]
    order = np.argsort(ids)
    node = np.searchsorted(ranges.rows, links.row)
    forward[node] = order[np.searchsorted(ids, links.event_id, sorter=order)]
    is_enclosing = _have_prefix(batch, ranges.rows, NODES_PREFIX)
    parent = ranges.parent[node]
    inner = node[(parent >= 0) & is_enclosing[parent]]
    forward[ranges.parent[inner]] = forward[inner]
    return forward


def _nearest(parent: Indices, wanted: Mask) -> Indices:
    """The nearest of the wanted ranges around each; -1 if there is none."""
    return np.where(parent >= 0, nearest(parent, wanted)[parent], -1) if len(parent) else parent


def _counted_lines(itself: Indices, forward: Indices, is_node: Mask) -> Indices:
    """The line that each range counts to, by the line or node that it is or is in (``itself``);
    -1 if there is none.
    """
    found: Indices = itself.copy()
    for _ in range(MAX_DERIVATIVES):
        nodes = np.flatnonzero((found >= 0) & is_node[found])
        if not len(nodes):
            return found
        found[nodes] = itself[forward[found[nodes]]]
    found[(found >= 0) & is_node[found]] = -1
    return found


def _enclosing_calls(
    batch: Batch, rows: Indices, near: Indices, counted_in: Indices, is_node: Mask, label: Indices
) -> Indices:
    """The call or line around each call, as the tree shows it; -1 for the outermost.

    A call that a backward pass repeats (a checkpoint's forward) is shown at the place and by the
    name of the first one: ``label`` is changed, as the model's path to it wasn't known.
    """
    enclosing = np.full(len(near), -1, np.int64)
    before = dict[int, int]()
    again = set[int]()
    calls = np.flatnonzero(equals(batch.source[rows], EventSource.MODULE))
    is_optimizer = _have_prefix(batch, rows, OPTIMIZER)
    in_order = calls[np.lexsort((batch.event_id[rows[calls]], batch.start_ns[rows[calls]]))]
    columns = (in_order, near[in_order], batch.name[rows[in_order]])
    for call, inside, name in zip(*[column.tolist() for column in columns], strict=True):
        while inside >= 0 and is_optimizer[inside]:
            inside = int(near[inside])
        in_node = inside >= 0 and bool(is_node[inside])
        known = before.get(name, -1)
        if not in_node:
            enclosing[call] = inside
        elif known >= 0:
            enclosing[call] = enclosing[known]
        else:
            enclosing[call] = counted_in[inside]
        if in_node or inside in again:
            again.add(call)
            label[call] = label[known] if known >= 0 else label[call]
        else:
            before[name] = call
    return enclosing


def _inclusive_sums(sums: PathSums, path: Indices, parent: Indices, backward: Amounts) -> PathSums:
    """The sums with the time of inner paths in each total.

    ``backward`` is the time of each range that a backward pass took.
    """
    total = sums.self_ns.copy()
    backward_times = np.zeros(len(parent), np.int64)
    np.add.at(backward_times, path, backward)
    for inner in range(len(parent) - 1, -1, -1):
        if parent[inner] >= 0:
            total[parent[inner]] += total[inner]
            backward_times[parent[inner]] += backward_times[inner]
    return replace(sums, total_ns=total, backward_ns=backward_times)
