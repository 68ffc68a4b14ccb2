"""Kills processes that write a Chrome trace, and looks at the file that each leaves."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from batches import make_batch
from forked import fork
from otel_recfn.sinks.chrome.writer import TraceWriter
from trace_files import names_in_cut

BATCHES, ROWS = 5, 300
LONGEST_PAUSE_S = 0.01


def kill_one(path: Path, chance: random.Random) -> int:
    """Kill a process amid a trace, its batches or its end. Returns how many slices the file has.

    Raises:
        AssertionError: it lacks some of those that the process said it had written.
    """
    path.unlink(missing_ok=True)
    said = ROWS * _killed_while_it_writes(path, chance.randrange(BATCHES + 1), chance.uniform(0.0, LONGEST_PAUSE_S))
    found = names_in_cut(path) if path.exists() else []
    assert found == [f"op {n % 9}" for _ in range(BATCHES) for n in range(ROWS)][: len(found)]
    assert len(found) >= said, f"{len(found)} of {said} slices are in {path}"
    return len(found)


def _killed_while_it_writes(path: Path, batches: int, later_s: float) -> int:
    """How many batches it said it had written, when it was killed some time after so many."""

    def write_and_end() -> None:
        writer, now_ns = TraceWriter(path), time.time_ns()
        for batch in range(BATCHES):
            starts = range(now_ns + batch * ROWS, now_ns + (batch + 1) * ROWS)
            writer.write(
                make_batch(
                    [
                        {"name": f"op {n % 9}", "shapes": "[[2,3]]", "start_ns": start, "end_ns": start + 1}
                        for n, start in enumerate(starts)
                    ]
                )
            )
            os.write(saying, b".")
        writer.close()
        signal.pause()

    hearing, saying = os.pipe()
    child = fork(write_and_end)
    os.close(saying)
    with open(hearing, "rb", buffering=0) as heard:
        said = sum(len(heard.read(1)) for _ in range(batches))
        time.sleep(later_s)  # not to synchronise: the moment of the kill is by chance
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return said + len(heard.read())
