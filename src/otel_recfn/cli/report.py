"""The command ``otel-recfn report``, which makes a page, or words, of Chrome traces."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from otel_recfn.errors import RecfnError, TraceFileError

MAX_NAMED = 5
"""The most files that a sentence names."""
TOO_LARGE = (
    "there is not enough memory for a report of so much; give fewer files, or record fewer steps"
)


def report(options: argparse.Namespace) -> int:
    """Write the report, or print it; returns the exit code."""
    try:
        # Without the native part they can't be imported, and say so.
        from otel_recfn.report.files import read_processes
        from otel_recfn.report.report import Report
        from otel_recfn.report.terminal import printable
    except RecfnError as error:
        print(f"otel-recfn report: {error}", file=sys.stderr)
        return 2
    try:
        processes = read_processes(
            options.files,
            all_runs=options.all_runs,
            torch_names=options.span_names == "torch",
        )
        read = [each.path for each in processes if each.path is not None]
        out = _output_path(options, read)
        notes = [f"{each.path}: {each.left_out}." for each in processes if each.left_out]
        if older := [path.name for path in options.files if path not in read]:
            notes.append(_older_runs_note(older))
        made = Report(processes, _title(read), notes)
        if out is None:
            sys.stdout.write(printable(made.text(options.format)))
        else:
            made.write(out, options.format)
            for note in notes:
                _say(note)
            sys.stdout.write(printable(f"{out}\n"))
    except (RecfnError, OSError) as error:
        _say(str(error))
        return 2
    except MemoryError:
        _say(TOO_LARGE)
        return 2
    return 0


def _say(text: str) -> None:
    """Print a line to stderr."""
    from otel_recfn.report.terminal import printable

    line = printable(" ".join(text.splitlines()), sys.stderr)
    print(f"otel-recfn report: {line}", file=sys.stderr)


def _output_path(options: argparse.Namespace, read: Sequence[Path]) -> Path | None:
    """The file to write: the one that is asked for, or else a page next to the first trace; None to
    print the report.
    """
    out: Path | None = options.out
    if out is None and options.format in (None, "html"):
        out = read[0].with_name(read[0].name.removesuffix(".gz").removesuffix(".json") + ".html")
    if out is not None and _is_one_of(out, options.files):
        raise TraceFileError(f"{out} is one of the traces; name another file to write with -o")
    return out


def _title(read: Sequence[Path]) -> str:
    return read[0].name if len(read) == 1 else f"{read[0].name} and {len(read) - 1} more"


def _older_runs_note(names: Sequence[str]) -> str:
    """The sentence that says which files were left out."""
    file_names = ", ".join(names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return f"Left out, as they are of older runs (--all-runs reads them): {file_names}{more}."


def _is_one_of(out: Path, files: Sequence[Path]) -> bool:
    """Whether a file is one of these, by whatever name."""
    return out in files or any(
        out.exists() and path.exists() and out.samefile(path) for path in files
    )
