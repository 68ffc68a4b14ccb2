"""A Chrome trace of a whole recording, written in one go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from otel_recfn.batches.merging import NOTHING
from otel_recfn.batches.python_ids import PythonIds
from otel_recfn.batches.wall import Block
from otel_recfn.errors import SettingError
from otel_recfn.model.batch import Batch, ProgramSpan, Sample
from otel_recfn.sinks.chrome.trace_file import ChromeTraceFile
from otel_recfn.sinks.chrome.trace_paths import cannot_write, checked_suffix
from otel_recfn.support.paths import file_path


def export(
    batches: Iterable[Batch],
    path: str | os.PathLike[str],
    lost: int = 0,
    spans: Sequence[ProgramSpan] = (),
    samples: Sequence[Sample] = (),
    block: Block | None = None,
) -> None:
    """Write a trace; an existing file is replaced.

    Args:
        batches: the batches of a recording.
        path: the file's.
        lost: how many rows of the recording aren't in the batches.
        spans: the program's spans that began or ended meanwhile, in this order.
        samples: what threads ran in Python meanwhile, in order.
        block: the part of the program that was recorded, if it is one.

    Raises:
        SettingError: another suffix, or the file can't be written.
        OSError: it can't be written to the end, and is an empty trace.
    """
    asked = file_path(path)
    checked_suffix(asked)
    try:
        recorded = [batch for batch in batches if len(batch) or batch.steps]
        if spans or samples:  # the program may have spans without a range in any thread
            first = recorded[0] if recorded else NOTHING
            recorded[:1] = [replace(first, spans=spans, samples=samples)]
        python_ids = PythonIds()
        python_ids.add(recorded)
        file = ChromeTraceFile(asked, python_ids)
    except OSError as error:
        raise SettingError(cannot_write(asked, error)) from error
    try:
        for batch in recorded:
            file.append(batch)
        file.finish(lost, block)
    finally:
        file.close()
