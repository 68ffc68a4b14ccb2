"""The names of spans, which tables, trees, reports and metrics have, too.

    call                       its path in the model     below the call of           name
    ------------------------   -----------------------   -------------------------   --------------
    the outermost module's                                                           LanguageModel
    a module's                 encoder.layer.3           the outermost one           encoder.layer.3
    one inside it              encoder.layer.3.mlp.fc    encoder.layer.3             mlp.fc
    one of an nn.Sequential    encoder.layer.3.mlp.0     encoder.layer.3.mlp         mlp.0
    the same                   0                         the outermost one           Linear

So a name is short where its parent is shown; the whole path is in ``recfn.module``. A phase of a
compilation has words; all others have the recorded name.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.batches.number_sets import equals
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import INSTANCE, SOURCES, EventSource
from otel_recfn.model.generation import PREFILL
from otel_recfn.model.phases import phase_name

PREFIX = SOURCES[EventSource.MODULE].call_prefix or ""


def class_in_name(name: str) -> str:
    """``Block`` of ``nn.Module: Block_0``; empty if it is no call of a module."""
    return INSTANCE.sub("", name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ""


def module_call_name(path: str, kind: str, enclosing: str = "") -> str:
    """The name of a module call of that path and class, below the call of the module with the
    path ``enclosing``.

    Numbers alone, as in an ``nn.Sequential``, say nothing: the word before them belongs to it.
    """
    parts = path.split(".")
    words = [
        index for index, part in enumerate(parts) if part and part != "*" and not part.isdigit()
    ]
    first = min(len(parts) - len(path_below(path, enclosing).split(".")), max(words, default=-1))
    return ".".join(parts[first:]) if words else kind


def recorded_call_name(name: str, path: str, enclosing: str) -> str:
    """The same by the recorded name of the range. Others than module calls, as the range around
    one that decodes, have the recorded name.
    """
    kind = class_in_name(name)
    return module_call_name(path, kind, enclosing) if kind else name


def path_below(path: str, enclosing: str) -> str:
    """The rest of a module's path below another one's; the whole path if it isn't below that.

    In paths of several modules ``*`` stands for numbers.
    """
    parts = path.split(".")
    outer = enclosing.split(".")
    if len(parts) > len(outer) and all(map(_are_alike, parts, outer)):
        return ".".join(parts[len(outer) :])
    return path


def _are_alike(part: str, other: str) -> bool:
    return part == other or ("*" in (part, other) and (part.isdigit() or other.isdigit()))


def display_name(name: str, *, torch_names: bool) -> str:
    """The name of a summary of ranges that are added up by that name; of module calls that is
    their class.
    """
    return name if torch_names else phase_name(name.removeprefix(PREFIX))


def with_module_names(batch: Batch, *, torch_names: bool) -> Batch:
    """The batch with the names that spans have of module calls."""
    calls = np.flatnonzero(equals(batch.source, EventSource.MODULE))
    return with_span_names(batch, calls, torch_names=torch_names)


def with_span_names(
    batch: Batch, rows: NDArray[np.int64], *, torch_names: bool, prefills: Container[int] = ()
) -> Batch:
    """The batch with the names that spans have in these rows, and with the classes of module calls.

    ``rows`` are module calls and phases of compilations, ``prefills`` those of them that are the
    first calls of generations.
    """
    if not len(rows):
        return batch
    names = list(batch.names)
    texts = dict[tuple[int, int, int, bool], tuple[str, str]]()
    calls = list(
        zip(
            batch.name[rows].tolist(),
            batch.module[rows].tolist(),
            batch.enclosing_module[rows].tolist(),
            map(prefills.__contains__, rows),
            strict=True,
        )
    )
    for call in set(calls):
        name, path, enclosing, is_prefill = call
        kind = class_in_name(names[name])
        label = phase_name(recorded_call_name(names[name], names[path], names[enclosing]))
        label = prefill_name(label) if is_prefill else label
        texts[call] = names[name] if torch_names else label, kind
    named = dict.fromkeys([text for both in texts.values() for text in both])
    # A text has one index, by which tables sum up: a block may have the name of a module.
    index_by_text = {name: index for index, name in enumerate(names) if name in named} | {"": 0}
    more = [text for text in named if text not in index_by_text]
    index_by_text |= {text: index for index, text in enumerate(more, len(names))}
    changed: dict[str, Any] = {"name": batch.name.copy(), "module_class": batch.module_class.copy()}
    changed["name"][rows] = [index_by_text[texts[call][0]] for call in calls]
    changed["module_class"][rows] = [index_by_text[texts[call][1]] for call in calls]
    return replace(batch, names=[*names, *more], **changed)


def prefill_name(name: str) -> str:
    """The name of the span of a generation's first call."""
    return f"{PREFILL}: {name}"
