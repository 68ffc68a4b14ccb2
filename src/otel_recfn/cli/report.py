"""The command ``otel-recfn report``, which makes a page, or words, of Chrome traces."""

from __future__ import annotations

import argparse
import sys

from otel_recfn.errors import RecfnError, TraceFileError


def report(options: argparse.Namespace) -> int:
    """Write the report, or print it; returns the exit code."""
    files, out, form = options.files, options.out, options.format
    try:
        from otel_recfn.report.files import read_processes
        from otel_recfn.report.report import (
            Report,
        )  # without the native part it can't be imported, and says so
        from otel_recfn.report.texts import printable

        processes = read_processes(files)
        if out is None and form in (None, "html"):
            out = files[0].with_name(
                files[0].name.removesuffix(".gz").removesuffix(".json") + ".html"
            )
        if out in files:
            raise TraceFileError(f"{out} is one of the traces; name another file to write with -o")
        made = Report(
            processes,
            files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more",
        )
        if out is not None:
            made.write(out, form)
        sys.stdout.write(printable(made.text(form) if out is None else f"{out}\n"))
    except (RecfnError, OSError) as error:
        print(f"otel-recfn report: {error}", file=sys.stderr)
        return 2
    return 0
