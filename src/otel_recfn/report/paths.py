"""The call paths of a recording: of its ranges, of the program's spans around them, and of groups.

    rank 0                a group for each process, if there are several
      request             a span of the program's
        model.forward     a range
          aten::mm        a range
      on the GPU          a group for the ranges of a process' GPU, whose time isn't the program's
        gemm              a range

Ranges, spans and groups are one forest: its numbers are those of ranges, then of the spans that
hold ranges, then of groups.

A block may have the name of a step or operator beside it. They have one path, and each does its own
work, so that work is a matter of finer paths, apart by kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from otel_recfn.batches.call_paths import Paths, call_paths
from otel_recfn.batches.number_sets import distinct
from otel_recfn.report.columns import DisplayedSpans, Joined, RangeColumns
from otel_recfn.report.kinds import BLOCK, GPU, KINDS, path_works
from otel_recfn.report.nesting import Mask, Numbers
from otel_recfn.report.process import Process

ON_GPU = "on the GPU"
"""The name of the group around the ranges of a GPU."""


class RecordedPaths(NamedTuple):
    """The call paths of a recording."""

    paths: Paths
    """``row_path`` has the path of each range, then of each of ``spans``, then of each group."""
    spans: Numbers
    """The spans that hold ranges."""
    labels: list[str]
    """The labels of the recording, with those of groups behind the others."""
    kind: Numbers
    """The kind of each path's ranges, of several the last one in KINDS; the group of a GPU has its
    kind, that of a process -1.
    """
    work: Numbers
    """The work of each range: index into WORKS."""


class _Group(NamedTuple):
    """A group of outermost ranges and spans."""

    label: str
    parent: int
    """The group around it; -1 if there is none."""


def recorded_paths(processes: Sequence[Process], joined: Joined) -> RecordedPaths:
    """The call paths of these processes, whose columns are joined."""
    ranges, spans = joined.ranges, joined.spans
    holding = _spans_that_hold_ranges(ranges, spans)
    lane_process = np.array([process for process, _ in joined.lanes], np.int64)
    parent = _parents(ranges, spans, holding)
    process = np.append(ranges.process, lane_process[spans.lane[holding]])
    kind = np.append(ranges.kind, np.full(len(holding), BLOCK))
    groups = _put_in_groups(parent, process, kind == GPU, processes)
    group_labels = len(joined.labels) + np.arange(len(groups))
    label = np.concatenate([ranges.label, spans.label[holding], group_labels])
    parent = np.append(parent, np.array([group.parent for group in groups], np.int64))
    labels = [*joined.labels, *[group.label for group in groups]]
    works_as = np.full(len(label), -1, np.int64)
    works_as[: len(ranges.row)] = np.where(ranges.is_step, -1, ranges.kind)
    paths, path_work = _paths_and_works(parent, label, works_as, labels)
    work = path_work[: len(ranges.row)]
    return RecordedPaths(paths, holding, labels, _path_kinds(paths, kind, labels), work)


def _paths_and_works(
    parent: Numbers, label: Numbers, works_as: Numbers, labels: Sequence[str]
) -> tuple[Paths, Numbers]:
    """The call paths of a forest, and the work of each of its members.

    Args:
        parent: the parent of each member; -1 at the top.
        label: the label of each.
        works_as: the kind by which each works; -1 if it does no work.
        labels: the texts of the labels.
    """
    kinds = len(KINDS) + 1
    finer = call_paths(parent, label * kinds + works_as + 1)
    finer_label, finer_kind = np.divmod(finer.label, kinds)
    names = [labels[index] for index in finer_label.tolist()]
    works = path_works(names, finer_kind - 1, finer.parent)
    paths = call_paths(finer.parent, finer_label)
    return paths._replace(row_path=paths.row_path[finer.row_path]), works[finer.row_path]


def _spans_that_hold_ranges(ranges: RangeColumns, spans: DisplayedSpans) -> Numbers:
    """The spans around ranges, directly or around other such spans."""
    holds = np.zeros(len(spans.label), np.bool_)
    enclosing = ranges.enclosing_span[ranges.enclosing_span >= 0]
    while len(enclosing):
        holds[enclosing] = True
        enclosing = spans.parent[distinct(enclosing)] - len(ranges.row)
        enclosing = enclosing[enclosing >= 0]
    return np.flatnonzero(holds)


def _parents(ranges: RangeColumns, spans: DisplayedSpans, holding: Numbers) -> Numbers:
    """The parent of each range and of each span that holds ranges, without groups; -1 at the top.

    The span directly around a range is its parent.
    """
    count = len(ranges.row)
    # The number in the forest of each range and span; the last entry is for "no parent", which
    # is -1.
    number = np.full(count + len(spans.label) + 1, -1, np.int64)
    number[:count] = np.arange(count)
    number[count + holding] = count + np.arange(len(holding))
    in_span = ranges.enclosing_span >= 0
    range_parent = np.where(in_span, ranges.enclosing_span + count, ranges.parent)
    return np.append(number[range_parent], number[spans.parent[holding]])


def _put_in_groups(
    parent: Numbers, process: Numbers, is_on_gpu: Mask, processes: Sequence[Process]
) -> list[_Group]:
    """Make groups the parents of outermost ranges and spans, and return these groups.

    Each of several processes has a group. A GPU has one in its process, unless nothing else is
    outermost there.
    """
    groups: list[_Group] = []
    for number, one_process in enumerate(processes):
        outermost = (parent < 0) & (process == number)
        on_gpu = outermost & is_on_gpu
        process_group = -1
        if len(processes) > 1:
            process_group = len(parent) + len(groups)
            parent[outermost] = process_group
            groups.append(_Group(one_process.label, -1))
        if bool(on_gpu.any()) and not bool(on_gpu[outermost].all()):
            parent[on_gpu] = len(parent) + len(groups)
            groups.append(_Group(ON_GPU, process_group))
    return groups


def _path_kinds(paths: Paths, kind: Numbers, labels: Sequence[str]) -> Numbers:
    """The kind of each path, given those of ranges and spans."""
    is_gpu_group = [labels[label] == ON_GPU for label in paths.label.tolist()]
    found = np.where(is_gpu_group, GPU, -1)
    np.maximum.at(found, paths.row_path[: len(kind)], kind)
    return found
