"""A program of many short threads whose Python calls are traced for long: its memory must stay flat.

    python tests/soak/call_tracer_soak.py [--seconds 600] [--threads 4] [--pause-ms 100]

Threads begin and end all the time, recurse, run generators and coroutines, raise, and compile functions that they call once,
and profiles begin and end beside one that runs throughout. What the process has in memory is told as it goes; after a warm-up
of a quarter of the time it may grow by MOST_GROWN_MB. Without pauses four threads make more than a drain that shares the GIL
with them takes away: then buffers grow to their bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator

from otel_recfn import PythonCalls, profile

MOST_GROWN_MB = 8.0
KEPT = 20_000


def resident_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def recurse(levels: int) -> int:
    return recurse(levels - 1) + 1 if levels else 0


def generated(count: int) -> Iterator[int]:
    for number in range(count):
        yield len(str(number))


def fail(levels: int) -> None:
    if levels:
        fail(levels - 1)
    raise ValueError


async def waiting() -> None:
    await asyncio.gather(*[asyncio.sleep(0) for _ in range(3)])


def compile_and_call(number: int) -> None:
    namespace: dict[str, object] = {}
    exec(f"def made_{number}(): return len('made')", namespace)
    namespace[f"made_{number}"]()  # type: ignore[operator]


def work(number: int) -> None:
    recurse(number % 700)
    sum(generated(50))
    asyncio.run(waiting())
    compile_and_call(number)
    try:
        fail(20)
    except ValueError:
        pass


def keep_starting_threads(until: float, pause_s: float) -> None:
    number = 0
    while time.monotonic() < until:
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join()
        number += 1
        time.sleep(pause_s)


def keep_profiling(until: float, _pause_s: float) -> None:
    while time.monotonic() < until:
        with profile(python_calls=PythonCalls(max_depth=5, min_duration_ns=1000), max_events=KEPT):
            time.sleep(0.1)


def watched(seconds: float, threads: int, pause_s: float) -> list[float]:
    """What the process had in memory each second."""
    until = time.monotonic() + seconds
    targets = [keep_starting_threads] * threads + [keep_profiling]
    running = [threading.Thread(target=target, args=(until, pause_s)) for target in targets]
    for thread in running:
        thread.start()
    sizes = []
    while time.monotonic() < until:
        time.sleep(1)
        sizes.append(resident_mb())
    for thread in running:
        thread.join()
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=100)
    options = parser.parse_args()
    with profile(python_calls=True, max_events=KEPT) as throughout:
        sizes = watched(options.seconds, options.threads, options.pause_ms / 1000)
    counters = throughout.counters()
    warm, rest = sizes[: len(sizes) // 4], sizes[len(sizes) // 4 :]
    half = len(rest) // 2
    grown = statistics.median(rest[half:]) - statistics.median(rest[:half] or rest)
    told = [f"{size:.0f}" for size in sizes[:: max(len(sizes) // 12, 1)]]
    print(f"CPython {sys.version.split()[0]}, {options.seconds:.0f} s: MB {' '.join(told)}; warm-up to {max(warm):.1f} MB")
    print(f"median of the second half of the rest against the first: {grown:+.1f} MB; most {max(rest):.1f} MB")
    print({name: count for name, count in counters.items() if count})
    return int(grown > MOST_GROWN_MB)


if __name__ == "__main__":
    sys.exit(main())
