"""The command line: ``otel-recfn build``, ``doctor``, ``report`` and ``codegen``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from otel_recfn.errors import RecfnError
from otel_recfn.version import __version__

CODEGEN = (
    "Reads operator schemas in the form of PyTorch's native_functions.yaml, and writes a Python"
    " package with a wrapper for each operator: a range for observers, a node in graphs of"
    " otel_recfn.tracing.trace. See docs/codegen.md."
)

REPORT = (
    "Reads Chrome traces (.json, .json.gz, a zip of one) that otel-recfn or torch.profiler wrote,"
    " and writes one HTML file with a flame graph, a time line and a table. Several files are"
    " processes, or ranks, of one run."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "doctor":
        from otel_recfn.cli.doctor import doctor

        return doctor()
    if options.command == "report":
        from otel_recfn.cli.report import report

        return report(options)
    return build() if options.command == "build" else codegen(options)


def build() -> int:
    """Compile the libraries against the installed torch, unless the cache has them; print their
    paths, and how long it took.
    """
    from otel_recfn.pytorch import observer_build
    from otel_recfn.support.native_part import native_part

    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    began_s = time.monotonic()
    try:
        native_part()
        for library in observer_build.LIBRARIES:
            print(observer_build.build(library))
    except RecfnError as error:
        print(f"otel-recfn build: {error}", file=sys.stderr)
        return 1
    print(f"otel-recfn build: done in {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    return 0


def codegen(options: argparse.Namespace) -> int:
    """Write the package of wrappers, or check whether its files are stale; returns the exit
    code.
    """
    from otel_recfn.codegen.modules import WrapperRequest, generate, stale_files, write

    try:
        generated = generate(WrapperRequest(options.schema, options.dispatch or "", options.shards))
        changed = (stale_files if options.check else write)(options.out, generated.texts)
    except (RecfnError, OSError) as error:
        print(f"otel-recfn codegen: {error}", file=sys.stderr)
        return 2 if options.check else 1
    for path in changed:
        done = "written" if path.exists() else "removed"
        print(f"{'stale' if options.check else done}: {path}")
    if not options.check:
        left_out = f"; left out: {', '.join(generated.left_out)}" if generated.left_out else ""
        print(
            f"{generated.wrapped} operators, of which {generated.traced} are recorded in"
            f" graphs{left_out}"
        )
    return 1 if options.check and changed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="otel-recfn", description="PyTorch's operators as OpenTelemetry spans."
    )
    parser.add_argument("--version", action="version", version=f"otel-recfn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser(
        "build",
        help="compile the torch libraries ahead of time, for example into an image",
        description=(
            "Compiles the torch observer, and the library for callbacks in Python, against the"
            " installed torch into the cache (OTEL_RECFN_CACHE_DIR), and prints their paths. For an"
            " image whose programs run as another user: make the directory as root with mode 755"
            " before."
        ),
    )
    commands.add_parser(
        "doctor",
        help="say what works here, and what doesn't",
        description="Exit code 0 where all works.",
    )
    _add_report(
        commands.add_parser("report", help="make a picture of Chrome traces", description=REPORT)
    )
    _add_codegen(
        commands.add_parser(
            "codegen", help="write trace wrappers from operator schemas", description=CODEGEN
        )
    )
    return parser


def _add_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a Chrome trace")
    command.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="the file to write (default: a page beside the first trace)",
    )
    command.add_argument(
        "--all-runs",
        action="store_true",
        help="read files of older runs, too (default: of the newest, and what ran meanwhile)",
    )
    command.add_argument(
        "--span-names",
        choices=("short", "torch"),
        default="short",
        help="how module calls are named: as in spans, or as in torch.profiler (default: short)",
    )
    command.add_argument(
        "--format",
        choices=("html", "md", "json"),
        help=(
            "a page, Markdown, or JSON; md and json are printed if there is no -o (default: by the"
            " ending of -o, else html)"
        ),
    )


def _add_codegen(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--schema", type=Path, required=True, metavar="FILE", help="the operators' schemas, in YAML"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the package's directory"
    )
    command.add_argument(
        "--dispatch",
        metavar="MODULE:ATTR",
        help=(
            "where the operators are found: a dict by name, a module or a class; else they are"
            " PyTorch's, in torch.ops"
        ),
    )
    command.add_argument(
        "--shards",
        type=_module_count,
        default=1,
        metavar="N",
        help="how many modules to write (default: 1)",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="write nothing; name stale files and exit with 1 if there are any",
    )


def _module_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of modules; give 1 or more")
    return int(text)
