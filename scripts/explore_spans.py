"""Plays random programs above a background spans sink, each in a random order of its threads, and shows what goes wrong.

    python scripts/explore_spans.py --seconds 120 --seed 1

Each program has its own exporters that hang, memory that is missing, processors that raise, and an end with more or less time.
What goes wrong: a span without its parent, rows that are counted nowhere or twice, a program that waits for longer than it
said, a thread that never ends. Of each kind the smallest program that was found is shown. The exit code is 1 where one was.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit" / "sinks" / "spans")]

from explored import explore  # noqa: E402


def failure(seed: int) -> str | None:
    """What went wrong in the program of this number, and what the program did."""
    try:
        explore(random.Random(seed).randrange)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def kind_of(told: str) -> str:
    """Its first line, without what differs from program to program."""
    return re.sub(r"\d+|\[.*|\{.*", "", told.splitlines()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next has the next one")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: Counter[str] = Counter()
    smallest: dict[str, str] = {}
    ends, seed = time.monotonic() + options.seconds, options.seed
    while time.monotonic() < ends:
        told = failure(seed)
        if told is not None:
            kind, told = kind_of(told), f"seed {seed}: {told}"
            found[kind] += 1
            smallest[kind] = min(told, smallest.get(kind, told), key=len)
        seed += 1
    print(f"{seed - options.seed} programs, {found.total()} went wrong")
    for kind, count in found.most_common():
        print(f"\n{count} x {kind}\n{smallest[kind]}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
