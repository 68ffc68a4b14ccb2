"""The processes of a run, read from trace files: one a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from otel_recfn.errors import TraceFileError
from otel_recfn.report.process import Process
from otel_recfn.report.traces.reading import Trace, read_trace

MAX_APART_NS = 60_000_000_000
"""The longest pause between the traces of one run: its ranks and children record at nearly the
same time.
"""


def read_processes(
    paths: Sequence[Path], *, all_runs: bool = False, torch_names: bool = False
) -> list[Process]:
    """A process for each file of the newest run, in their order.

    Args:
        paths: the files.
        all_runs: whether files of older runs are read too, however long before.
        torch_names: whether module calls have torch.profiler's names.

    Raises:
        TraceFileError: a file that can't be read, is no trace or has no ranges; or files that are
            not of one run.
    """
    twice = {path for path in paths if paths.count(path) > 1}
    if twice:
        raise TraceFileError(f"{twice.pop()} is given twice; give each file once")
    traces = [read_trace(path, torch_names=torch_names) for path in paths]
    if not all_runs:
        traces = _latest_run(traces)
    different = sorted({trace.script for trace in traces if trace.script})
    if len(different) > 1:
        raise TraceFileError(
            f"the traces are of different programs: {', '.join(different)}; make a report of each"
        )
    labels = [trace.process.label for trace in traces]
    names = [
        label if labels.count(label) == 1 else str(trace.path)
        for label, trace in zip(labels, traces, strict=True)
    ]
    return [trace.process._replace(label=name) for trace, name in zip(traces, names, strict=True)]


def _latest_run(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of the newest run among these, in their order, and those without the id of a run.

    Most launchers give ranks no id of their launch, so that each rank has a run id of its own.
    Therefore runs that overlap count as one.

    Raises:
        TraceFileError: some without an id were recorded at another time.
    """
    by_run: dict[str, list[Trace]] = {}
    for trace in traces:
        by_run.setdefault(trace.run, []).append(trace)
    unknown = by_run.pop("", [])
    runs: list[list[Trace]] = []
    for run in sorted(by_run.values(), key=_start_ns):
        if runs and _start_ns(run) <= _end_ns(runs[-1]):
            runs[-1].extend(run)
        else:
            runs.append(list(run))
    newest = runs[-1:]
    _refuse_far_apart(sorted([*newest, *[[trace] for trace in unknown]], key=_start_ns))
    left_out = {trace.path for run in runs[:-1] for trace in run}
    return [trace for trace in traces if trace.path not in left_out]


def _refuse_far_apart(groups: Sequence[Sequence[Trace]]) -> None:
    """Refuse groups of traces, in the order of their begins, if a long time lies between two of
    them.
    """
    before = groups[0]
    for group in groups[1:]:
        apart_ns = _start_ns(group) - _end_ns(before)
        if apart_ns > MAX_APART_NS:
            first = min(group, key=lambda each: each.start_ns)
            last = max(before, key=lambda each: each.end_ns)
            raise TraceFileError(
                f"{first.path} begins {apart_ns / 1e9:.0f} s after {last.path} ends, so they are"
                " not of one run; make a report of each"
            )
        before = max(before, group, key=_end_ns)


def _start_ns(traces: Sequence[Trace]) -> int:
    return min(trace.start_ns for trace in traces)


def _end_ns(traces: Sequence[Trace]) -> int:
    return max(trace.end_ns for trace in traces)
