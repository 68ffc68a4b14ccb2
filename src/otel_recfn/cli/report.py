"""``otel-recfn report``: Chrome traces to a page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from otel_recfn.model.errors import RecfnError
from otel_recfn.report import report as make_report
from otel_recfn.report.files import read_processes
from otel_recfn.report.page import write_page


def report(options: argparse.Namespace) -> int:
    """Write the page, and print where it is; returns the exit code."""
    files: list[Path] = options.files
    out: Path = options.out or files[0].with_name(files[0].name.removesuffix(".gz").removesuffix(".json") + ".html")
    try:
        if out in files:
            raise RecfnError(f"{out} is one of the traces; name another file to write with -o")
        title = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
        write_page(make_report(read_processes(files), title).html(), out)
    except (RecfnError, OSError) as error:
        print(f"otel-recfn report: {error}", file=sys.stderr)
        return 2
    print(out)
    return 0
