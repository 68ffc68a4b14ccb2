"""A process of a recording: the ranges that it recorded, and the program's spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from otel_recfn.batches.wall import Block
from otel_recfn.model.batch import Batch, Sample
from otel_recfn.report.nesting import Numbers


class Spans(NamedTuple):
    """The program's spans, as columns.

    They only show where ranges lie: they take no time from ranges.
    """

    name: Sequence[str]
    start_ns: Numbers
    end_ns: Numbers
    thread: Numbers
    """Index into the batch's ``tracks``."""
    parent: Numbers
    """The parent of each span: a row of the batch or, beyond these, a span; -1 if it has none."""
    enclosing: Numbers
    """The span directly around each row of the batch; -1 if a range is, or nothing."""


class Process(NamedTuple):
    """A process, or rank, with what it recorded."""

    label: str
    """The name by which a report tells it from others."""
    batch: Batch
    activity: Numbers | None = None
    """The Activity of each row; None: all are the CPU's."""
    left_out: str = ""
    """A sentence, without its full stop, that says which part of the trace is missing or was not
    read, and why; empty if it is complete.
    """
    path: Path | None = None
    """The file that it was read from; None if there is none."""
    spans: Spans | None = None
    """The program's spans; None if none are known."""
    block: Block | None = None
    """The block that a profile recorded; None if none did, as in a program's trace."""
    samples: Sequence[Sample] = ()
    """What threads ran in Python while they recorded nothing; empty if nothing was sampled."""
