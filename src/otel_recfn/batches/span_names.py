"""The names of spans: a module call has its path in its model, or else its class, a phase of a
compilation words.

All others have the recorded name.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.batch import Batch
from otel_recfn.model.events import SOURCES, EventSource
from otel_recfn.model.generation import PREFILL
from otel_recfn.model.phases import phase_name

PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""
_INSTANCE = re.compile(r"_\d+$")
"""The number of an instance, at the end of a module call's name."""


def class_in_name(name: str) -> str:
    """``Block`` of ``nn.Module: Block_0``; empty if it is no call of a module."""
    return _INSTANCE.sub("", name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ""


def module_call_name(path: str, kind: str) -> str:
    """The name of a module call of that path and class.

    Numbers alone, as in an ``nn.Sequential``, say nothing.
    """
    return (
        path
        if any(part and part != "*" and not part.isdigit() for part in path.split("."))
        else kind
    )


def display_name(name: str, *, torch_names: bool) -> str:
    """The name of a summary of ranges that are added up by that name; of module calls that is
    their class.
    """
    return name if torch_names else phase_name(name.removeprefix(PREFIX))


def with_span_names(
    batch: Batch, rows: NDArray[np.int64], *, torch_names: bool, prefills: Container[int] = ()
) -> Batch:
    """The batch with the names that spans have in these rows, and with the classes of module calls.

    ``rows`` are module calls and phases of compilations, ``prefills`` those of them that are the
    first calls of generations.
    """
    names = list(batch.names)
    texts = dict[tuple[int, int, bool], tuple[str, str]]()
    calls = list(
        zip(
            batch.name[rows].tolist(),
            batch.module[rows].tolist(),
            map(prefills.__contains__, rows),
            strict=True,
        )
    )
    for name, path, is_prefill in set(calls):
        kind = class_in_name(
            names[name]
        )  # a phase and what is around a call that decodes have none
        label = module_call_name(names[path], kind) if kind else phase_name(names[name])
        label = prefill_name(label) if is_prefill else label
        texts[name, path, is_prefill] = names[name] if torch_names else label, kind
    more = list({text for both in texts.values() for text in both})
    index_by_text = {text: index for index, text in enumerate(more, len(names))} | {"": 0}
    changed: dict[str, Any] = {"name": batch.name.copy(), "module_class": batch.module_class.copy()}
    changed["name"][rows] = [index_by_text[texts[call][0]] for call in calls]
    changed["module_class"][rows] = [index_by_text[texts[call][1]] for call in calls]
    return replace(batch, names=[*names, *more], **changed)


def prefill_name(name: str) -> str:
    """The name of the span of a generation's first call."""
    return f"{PREFILL}: {name}"
