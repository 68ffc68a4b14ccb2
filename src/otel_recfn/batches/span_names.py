"""The names of spans: a module call has its path in its model, or else its class, a phase of a compilation words.

All others have the recorded name."""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.forward_links import NODES_PREFIX
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventSource
from otel_recfn.model.generation import PREFILL
from otel_recfn.model.phases import phase_name

PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""
_INSTANCE = re.compile(r"_\d+$")
"""The number of an instance, at the end of a module call's name."""

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's path."""


def class_of(name: str) -> str:
    """``Block`` of ``nn.Module: Block_0``; empty if it is no call of a module."""
    return _INSTANCE.sub("", name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ""


def called(path: str, kind: str) -> str:
    """The name of a module call of that path and class. Numbers alone, as in an ``nn.Sequential``, say nothing."""
    return (
        path
        if any(part and part != "*" and not part.isdigit() for part in path.split("."))
        else kind
    )


class NumberedNames:
    """Numbers of names, and what is known of each by its number.

    Batches that follow each other mostly have the same list, which only grows. 0 is the number of the empty name.
    """

    def __init__(self, *, torch_names: bool) -> None:
        self._torch_names = torch_names
        self.values = list[str]()
        self.shown, self.modules = array("I"), array("I")
        """The number of each name in spans, which is the class of a module call and the node of a range around one; and that of
        a module's path with ``*`` in place of numbers. Else the same number."""
        self._number_of = dict[str, int]()
        self.seen: Sequence[str] = ()
        """The list that was numbered last."""
        self.numbers = np.zeros(0, np.uint32)
        """The number of each of its names."""
        self._number("")

    def number_all(self, names: Sequence[str]) -> None:
        """Number the names of a list, the same name always by the same number."""
        known = self.numbers if names is self.seen else self.numbers[:0]
        new = [self._number(name) for name in names[len(known) :]]
        self.seen, self.numbers = names, np.append(known, np.array(new, np.uint32))

    def _number(self, name: str) -> int:
        number = self._number_of.setdefault(name, len(self.values))
        if number == len(self.values):
            self.values.append(name)
            self.shown.append(number)
            self.modules.append(number)
            if name.startswith(PREFIX):
                self.shown[number] = self._number(PREFIX + class_of(name))
            elif name.startswith(NODES_PREFIX) and not self._torch_names:
                self.shown[number] = self._number(name.removeprefix(NODES_PREFIX))
            elif " " not in name:
                self.modules[number] = self._number(_NUMBER.sub("*", name))
        return number


def shown_name(name: str, *, torch_names: bool) -> str:
    """The name of a summary of ranges that are added up by that name; of module calls that is their class."""
    return name if torch_names else phase_name(name.removeprefix(PREFIX))


def with_span_names(
    batch: Batch, rows: NDArray[np.int64], *, torch_names: bool, prefills: Container[int] = ()
) -> Batch:
    """The batch with the names that spans have in these rows, and with the classes of module calls.

    ``rows`` are module calls and phases of compilations, ``prefills`` those of them that are the first calls of generations.
    """
    names, texts = list(batch.names), dict[tuple[int, int, bool], tuple[str, str]]()
    calls = list(
        zip(
            batch.name[rows].tolist(),
            batch.module[rows].tolist(),
            map(prefills.__contains__, rows),
            strict=True,
        )
    )
    for name, path, is_prefill in set(calls):
        kind = class_of(names[name])  # a phase and what is around a call that decodes have none
        shown = called(names[path], kind) if kind else phase_name(names[name])
        shown = prefill_name(shown) if is_prefill else shown
        texts[name, path, is_prefill] = names[name] if torch_names else shown, kind
    more = list({text for both in texts.values() for text in both})
    place_of = {text: place for place, text in enumerate(more, len(names))} | {"": 0}
    changed: dict[str, Any] = {"name": batch.name.copy(), "module_class": batch.module_class.copy()}
    changed["name"][rows] = [place_of[texts[call][0]] for call in calls]
    changed["module_class"][rows] = [place_of[texts[call][1]] for call in calls]
    return replace(batch, names=[*names, *more], **changed)


def prefill_name(name: str) -> str:
    """The name of the span of a generation's first call."""
    return f"{PREFILL}: {name}"
