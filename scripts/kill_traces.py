"""Kills processes that write Chrome traces, at random moments. Perfetto's engine has to open each file, with all that it has.

python scripts/kill_traces.py --kills 240
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from perfetto_ui import ask_perfetto
from trace_kills import kill_one

SLICES = "select count(*) from slice"
COMPLAINTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def main() -> None:
    """Half of the files are compressed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=240)
    parser.add_argument("--seed", type=int, default=3)
    given = parser.parse_args()
    chance, opened, none, of_slices = random.Random(given.seed), 0, 0, set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.kills):
            path = Path(folder) / ("trace.json", "trace.json.gz")[number % 2]
            slices = kill_one(path, chance)
            if not path.exists():
                none += 1
                continue
            assert ask_perfetto(path, SLICES, COMPLAINTS) == [[(slices,)], []], f"Perfetto has not all {slices} slices"
            opened += 1
            of_slices.add(slices)
    print(f"{given.kills} kills: Perfetto opened {opened} files of {len(of_slices)} sizes; {none} came before there was one")


if __name__ == "__main__":
    main()
