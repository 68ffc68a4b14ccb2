"""``otel-recfn codegen``: writes trace wrappers from operator schemas."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from otel_recfn.model.errors import RecfnError

DESCRIPTION = (
    "Reads operator schemas in the form of PyTorch's native_functions.yaml, and writes a Python package with a wrapper for "
    "each operator: a range for observers, a node in graphs of otel_recfn.tracing.trace. See docs/codegen.md."
)


def add_options(command: argparse.ArgumentParser) -> None:
    """The command's options."""
    command.add_argument("--schema", type=Path, required=True, metavar="FILE", help="the operators' schemas, in YAML")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="the package's directory")
    command.add_argument(
        "--dispatch",
        type=_dispatch,
        metavar="MODULE:ATTR",
        help="where the operators are found: a dict by name, a module, a class, or a function that finds them; "
        "else they are PyTorch's, in torch.ops",
    )
    command.add_argument("--shards", type=_count, default=1, metavar="N", help="in how many modules (default: 1)")
    command.add_argument(
        "--check", action="store_true", help="write nothing; name stale files and exit with 1 if there are any"
    )


def run(options: argparse.Namespace) -> int:
    """Write or check the files; returns the exit code."""
    from otel_recfn.codegen.modules import Request, generate, stale_files, write

    try:
        generated = generate(Request(options.schema, options.dispatch or "", options.shards))
        changed = (stale_files if options.check else write)(options.out, generated.texts)
    except (RecfnError, OSError) as error:
        print(f"otel-recfn codegen: {error}", file=sys.stderr)
        return 2 if options.check else 1
    for path in changed:
        print(f"{'stale' if options.check else 'written' if path.exists() else 'removed'}: {path}")
    if not options.check:
        left_out = f"; left out: {', '.join(generated.left_out)}" if generated.left_out else ""
        print(f"{generated.wrapped} operators, of which {generated.traced} are recorded in graphs{left_out}")
    return 1 if options.check and changed else 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of modules; give 1 or more")
    return int(text)


def _dispatch(text: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no module:attribute; give 'mylib.kernels:FUNCTIONS', for instance")
    return text
