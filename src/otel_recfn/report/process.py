"""What a report is made of: processes, each with its batch, and what was found in them."""

from __future__ import annotations

from typing import NamedTuple

from otel_recfn.model.batch import Batch


class Process(NamedTuple):
    """What one process, or one rank, recorded."""

    label: str
    """What it is called beside others."""
    batch: Batch


class Finding(NamedTuple):
    """Something to look at first."""

    title: str
    text: str
    """The evidence, in plain words."""
    share: float
    """Of the time that was recorded, 0 to 1."""
    next_step: str
    anchor: tuple[str, ...] = ()
    """The names, outermost first, with which the path ends that it is about: the page shows the widest such frame."""
    serious: bool = False
    """Whether mending it is worth the work."""
    code: str = ""
    """The line of Python that it comes from, ``file(line): function``; empty where none is on record."""
    process: str = ""
    """The label of the process that has most of it."""
    rule: str = ""
    """What kind of finding it is, in a word."""
