"""The kinds of ranges, and the kinds of work that a report sums up.

    kind    what recorded the range      operator, module, Python call ...    a colour
    work    what it does for the user    loading data, optimizers ...         a sentence

The work of a range follows from its name or, if that says nothing, from its kind. A range does the
work of the outermost range around it: an operator in an optimizer's step is work of the optimizer.
Steps, and the program's spans, are no work: they say when something ran.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_recfn.batches.number_sets import Indices
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import NODES_PREFIX, OPTIMIZER, EventSource, RecordScope
from otel_recfn.report.nesting import Numbers

KINDS = (
    "operator",
    "backward",
    "module",
    "step, block or span of yours",
    "Python call",
    "compilation",
    "GPU",
)
"""The kinds of ranges, each of which has a colour."""
OPERATOR, BACKWARD, MODULE, BLOCK, PYTHON, COMPILATION, GPU = range(len(KINDS))
_SOURCE_KIND = {
    EventSource.MODULE: MODULE,
    EventSource.RECORD_FUNCTION: BLOCK,
    EventSource.STEP: BLOCK,
    EventSource.PYTHON_CALL: PYTHON,
    EventSource.COMPILATION: COMPILATION,
}

LOADER = "enumerate(DataLoader)#"
COMPILATIONS = ("torch.compile: ", "_compile.compile_inner (dynamo_timed)")
"""The beginnings of the names of ranges that load data, and of those that compile."""
LOADER_MODULES = "torch.utils.data."
"""The beginning of the modules whose functions wait for batches, or for the work of making one."""
SYNCS = {"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"}
"""The operators that give Python the value of a tensor."""
COPIES = {"aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous", "aten::clone"}
"""The operators that copy a tensor."""

KIND_WORK = {
    OPERATOR: "Other operators",
    BACKWARD: "Backward passes",
    MODULE: "Calls of modules",
    BLOCK: "Your own ranges",
    PYTHON: "Python functions",
    COMPILATION: "Compiling",
}
"""The work that ranges do, by their kind, as a sentence begins with it."""
LOADING = "Loading data"
OPTIMIZERS = "Optimizers"
NAME_WORK = {
    LOADER: LOADING,
    OPTIMIZER: OPTIMIZERS,
    **dict.fromkeys(COMPILATIONS, KIND_WORK[COMPILATION]),
}
"""The work of ranges by the beginning of their names, which counts before their kind."""
WAITING = "Waiting for the GPU"
FIRST_USE = "First use of the GPU"
"""The work of calls into a device's runtime that wait for the device, or that make it ready. It
counts before the work of the ranges around them.
"""
CLOSURE_WORK = (KIND_WORK[MODULE], KIND_WORK[BACKWARD])
"""The work that an optimizer's closure does for the program, and not for the optimizer."""
NO_WORK = ("", KIND_WORK[BLOCK], KIND_WORK[PYTHON])
"""The work of steps, blocks and Python functions: they hold any other work, or wait for it."""
WORKS = ("", *KIND_WORK.values(), LOADING, OPTIMIZERS, WAITING, FIRST_USE)
"""All kinds of work; the first is that of what does none."""


def range_kinds(batch: Batch, rows: Indices) -> Numbers:
    """The kind of each of these rows: the device counts before the source, and that before the
    scope.
    """
    is_node = np.array([name.startswith(NODES_PREFIX) for name in batch.names], np.bool_)
    is_backward = (batch.scope[rows] == RecordScope.BACKWARD_FUNCTION) | is_node[batch.name[rows]]
    kind = np.full(len(rows), OPERATOR, np.int64)
    kind[is_backward] = BACKWARD
    kind[~is_backward & (batch.scope[rows] == RecordScope.USER_SCOPE)] = BLOCK
    for source, number in _SOURCE_KIND.items():
        kind[batch.source[rows] == source] = number
    kind[batch.device[rows] != 0] = GPU
    return kind


def path_works(names: Sequence[str], kinds: Numbers, parents: Numbers) -> Numbers:
    """The work of each call path, as an index into WORKS.

    A path has the work of the path around it, or its own if the path around it is a block or a
    Python function. Modules and backward passes in an optimizer's step are called by its closure,
    and keep their own work.

    Args:
        names: the last name of each path.
        kinds: the kind of each path's ranges; -1 if they are no work.
        parents: the path around each, which stands before it; -1 for the outermost.
    """
    works = [
        (_name_work(name) or KIND_WORK.get(kind, "")) if kind >= 0 else ""
        for name, kind in zip(names, kinds.tolist(), strict=True)
    ]
    for path, parent in enumerate(parents.tolist()):
        enclosing = works[parent] if parent >= 0 else ""
        is_closure = enclosing == OPTIMIZERS and works[path] in CLOSURE_WORK
        if enclosing not in NO_WORK and not is_closure:
            works[path] = enclosing
    return np.array([WORKS.index(work) for work in works], np.int64)


def _name_work(name: str) -> str:
    return next((work for prefix, work in NAME_WORK.items() if name.startswith(prefix)), "")
