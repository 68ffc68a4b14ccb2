"""The command line of a benchmark that takes numbers."""

from __future__ import annotations

import argparse


def number_given(description: str | None, name: str, default: int) -> int:
    """As ``numbers_given``, of one number."""
    return numbers_given(description, **{name: default})[0]


def numbers_given(description: str | None, **defaults: int) -> list[int]:
    """The numbers, in this order; ``--help`` says what they are for.

    Args:
        description: of the benchmark.
        defaults: what each counts, and its value where none is given.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(
            name, nargs="?", type=int, default=default, help=f"how many {name}; %(default)s"
        )
    options = vars(parser.parse_args())
    return [options[name] for name in defaults]
