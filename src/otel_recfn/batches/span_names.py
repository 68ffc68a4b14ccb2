"""The names of spans: a module call has its path in its model, or else its class, a phase of a compilation words.

All others have the recorded name."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventSource, RecordScope
from otel_recfn.model.generation import PREFILL
from otel_recfn.model.phases import phase_name

PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""
_MODULE = int(EventSource.MODULE)
_INSTANCE = re.compile(r"_\d+$")
"""The number of an instance, at the end of a module call's name."""


EVALUATION = "autograd::engine::evaluate_function: "
"""What PyTorch puts before a backward node's name where it names the range around it."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's path."""


def class_of(name: str) -> str:
    """``Block`` of ``nn.Module: Block_0``; empty if it is no call of a module."""
    return _INSTANCE.sub("", name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ""


def called(path: str, kind: str) -> str:
    """The name of a module call of that path and class. Numbers alone, as in an ``nn.Sequential``, say nothing."""
    return path if any(part and part != "*" and not part.isdigit() for part in path.split(".")) else kind


class NumberedNames:
    """Numbers of names, and what is known of each by its number.

    Batches that follow each other mostly have the same list, which only grows.

    Args:
        first: the name whose number is 0.
        torch_names: spans are called as torch.profiler calls them.
    """

    def __init__(self, first: str, *, torch_names: bool) -> None:
        self._torch_names = torch_names
        self.values = list[str]()
        self.shown, self.modules = array("I"), array("I")
        """By number: that of what a module call (its class) or a range around a backward node (the node) is shown as; and
        that of a module's path with ``*`` in place of numbers. Else the same."""
        self._number_of = dict[str, int]()
        self._seen: Sequence[str] = ()
        self._numbers = np.zeros(0, np.uint32)
        self._number(first)

    def numbers_of(self, names: Sequence[str]) -> NDArray[np.uint32]:
        """A number for each, the same for the same name."""
        known = self._numbers if names is self._seen else self._numbers[:0]
        new = [self._number(name) for name in names[len(known) :]]
        self._seen, self._numbers = names, np.append(known, np.array(new, np.uint32)) if new else known
        return self._numbers

    def _number(self, name: str) -> int:
        number = self._number_of.setdefault(name, len(self.values))
        if number == len(self.values):
            self.values.append(name)
            self.shown.append(number)
            self.modules.append(number)
            if name.startswith(PREFIX):
                self.shown[number] = self._number(PREFIX + class_of(name))
            elif name.startswith(EVALUATION) and not self._torch_names:
                self.shown[number] = self._number(name.removeprefix(EVALUATION))
            elif " " not in name:
                self.modules[number] = self._number(_NUMBER.sub("*", name))
        return number

    def class_of(self, number: int) -> str:
        """The class that module calls are of which are added up by that number; empty for other names."""
        name = self.values[number]
        return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""

    def text(self, number: int) -> str:
        """What is shown of that number, but for module calls' paths."""
        name = self.values[number]
        return name if self._torch_names else phase_name(name.removeprefix(PREFIX))


def with_span_names(batch: Batch, rows: NDArray[np.int64], *, torch_names: bool) -> Batch:
    """The batch with the names that these rows have in spans, and with the classes of those that are module calls.

    Args:
        batch: the batch.
        rows: some of its rows.
        torch_names: whether spans have torch.profiler's names.
    """
    source = batch.source[rows]
    may_be_phase = (source == EventSource.COMPILATION) | (source == EventSource.TORCH)
    may_be_phase &= batch.scope[rows] == RecordScope.USER_SCOPE
    named = rows[(source == _MODULE) | may_be_phase]
    if not len(named):
        return batch
    names, place_of = [*batch.names], dict[str, int]()
    found = dict[tuple[int, int], tuple[int, int]]()

    def place(text: str) -> int:
        if text not in place_of:
            place_of[text] = len(names)
            names.append(text)
        return place_of[text]

    pairs = list(zip(batch.name[named].tolist(), batch.module[named].tolist(), strict=True))
    for name, path in set(pairs):
        kind = class_of(names[name])  # an optimizer's step and a phase have none
        shown = names[name] if torch_names else called(names[path], kind) if kind else phase_name(names[name])
        found[name, path] = place(shown), place(kind) if kind else 0
    changed: dict[str, Any] = {"names": names, "name": batch.name.copy(), "module_class": batch.module_class.copy()}
    changed["name"][named], changed["module_class"][named] = np.array([found[pair] for pair in pairs], np.uint32).T
    return replace(batch, **changed)


def prefill_name(name: str) -> str:
    """The name of the span of a generation's first call."""
    return f"{PREFILL}: {name}"


def with_prefills(batch: Batch, rows: Sequence[int]) -> Batch:
    """The batch with names that say that these rows are prefills."""
    changed: dict[str, Any] = {"names": [*batch.names], "name": batch.name.copy()}
    for row in rows:
        changed["names"].append(prefill_name(batch.names[batch.name[row]]))
        changed["name"][row] = len(changed["names"]) - 1
    return replace(batch, **changed)
