"""The command line of a benchmark: its numbers, and ``--tiny``.

Each benchmark does each of its parts once with ``--tiny``, at the smallest size, in a second or
two. Its numbers mean nothing then; ``tests/integration/test_benchmarks.py`` sees by it that each
benchmark works.
"""

from __future__ import annotations

import argparse
import sys
from typing import TypeVar

IS_TINY = "--tiny" in sys.argv[1:]
Size = TypeVar("Size")


def sized(usual: Size, tiny: Size) -> Size:
    """The usual size of a part of a benchmark, or the tiny one."""
    return tiny if IS_TINY else usual


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with ``--tiny``, whose help is the description as it is written."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="only show that it works: each part once, at the smallest size",
    )
    return parser


def read_number(description: str | None, name: str, default: int) -> int:
    """The number that is given, like ``read_numbers``."""
    return read_numbers(description, **{name: default})[0]


def read_numbers(description: str | None, **defaults: int) -> list[int]:
    """The numbers that are given, in this order.

    Args:
        description: the text of ``--help``.
        defaults: what each number counts, and its value if it isn't given.
    """
    parser = make_parser(description)
    for name, default in defaults.items():
        parser.add_argument(
            name, nargs="?", type=int, default=default, help=f"how many {name}; %(default)s"
        )
    options = vars(parser.parse_args())
    return [options[name] for name in defaults]
