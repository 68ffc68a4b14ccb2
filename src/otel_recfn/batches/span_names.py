"""The names of spans: a module call has its path in its model, or else its class; all others have the recorded name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventSource

PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""
_MODULE = int(EventSource.MODULE)
_INSTANCE = re.compile(r"_\d+$")
"""The number of an instance, at the end of a module call's name."""


def class_of(name: str) -> str:
    """``Block`` of ``nn.Module: Block_0``; empty if it is no call of a module."""
    return _INSTANCE.sub("", name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ""


def called(path: str, kind: str) -> str:
    """The name of a module call of that path and class. Numbers alone, as in an ``nn.Sequential``, say nothing."""
    return path if any(part and not part.isdigit() for part in path.split(".")) else kind


def with_classes(batch: Batch, rows: NDArray[np.int64], *, torch_names: bool) -> Batch:
    """The batch with the classes of the module calls among these rows, and with their names in spans.

    Args:
        batch: the batch.
        rows: some of its rows.
        torch_names: whether spans have torch.profiler's names.
    """
    calls = rows[batch.source[rows] == _MODULE]
    if not len(calls):
        return batch
    names, place_of = [*batch.names], dict[str, int]()
    found = dict[tuple[int, int], tuple[int, int]]()

    def place(text: str) -> int:
        if text not in place_of:
            place_of[text] = len(names)
            names.append(text)
        return place_of[text]

    pairs = list(zip(batch.name[calls].tolist(), batch.module[calls].tolist(), strict=True))
    for name, path in set(pairs):
        kind = class_of(names[name])  # an optimizer's step has none
        shown = called(names[path], kind) if kind and not torch_names else names[name]
        found[name, path] = place(shown), place(kind) if kind else 0
    changed: dict[str, Any] = {"names": names, "name": batch.name.copy(), "module_class": batch.module_class.copy()}
    changed["name"][calls], changed["module_class"][calls] = np.array([found[pair] for pair in pairs], np.uint32).T
    return replace(batch, **changed)
