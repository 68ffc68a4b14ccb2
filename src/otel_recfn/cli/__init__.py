"""``otel-recfn build``, ``doctor`` and ``codegen``."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from otel_recfn.cli import codegen
from otel_recfn.model.errors import RecfnError
from otel_recfn.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "codegen":
        return codegen.run(options)
    return build() if options.command == "build" else doctor()


def build() -> int:
    """Compile what is compiled against torch, unless it is there; print where it is, and how long that took."""
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


def doctor() -> int:
    """Print what works here and what doesn't, each as soon as it is known; 0 where PyTorch's operators can become spans."""
    from otel_recfn.cli.check import as_text, verdict
    from otel_recfn.cli.examination import examine

    checks = []
    for check in examine():
        checks.append(check)
        print(as_text(check), flush=True)
    print(f"\n{verdict(checks)}")
    return 1 if any(check.ok is False for check in checks) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="otel-recfn", description="PyTorch's operators as OpenTelemetry spans.")
    parser.add_argument("--version", action="version", version=f"otel-recfn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser(
        "build",
        help="compile the torch libraries ahead of time, for example into an image",
        description="Compiles the torch observer, and the library for callbacks in Python, against the installed torch into "
        "the cache (OTEL_RECFN_CACHE_DIR), and prints their paths. For an image whose programs run as another user: make the "
        "directory as root with mode 755 before.",
    )
    commands.add_parser("doctor", help="say what works here, and why not", description="Exit code 0 where all works.")
    help_ = "write trace wrappers from operator schemas"
    codegen.add_options(commands.add_parser("codegen", help=help_, description=codegen.DESCRIPTION))
    return parser
