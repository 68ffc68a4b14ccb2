"""What samples of Python cost: our thread's CPU time, as a share of a core.

    python benchmarks/bench_python_samples.py [seconds]

Five programs run for so many seconds each: one of nothing but operators, which are never sampled;
one of Python alone, which each look finds; one of both by turns, for less than the time between
looks each; one that waits; and one that waits beside many threads, whose clocks are read. The floor
is a thread that only wakes as often.

The last column is the share of the time that samples stand for: of both by turns it should be what
Python took, which is printed beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from lib.command_line import read_number, sized

from otel_recfn import profile

SECONDS = 5
PERIOD_SECONDS = 0.02
"""The time between two looks."""
THREADS = 30
TURN_SECONDS = 0.006
"""The time for which Python alone runs, and then operators."""
GOAL = 0.002
"""The share of a core that samples may take."""


def run_operators(until: float) -> None:
    ones = torch.ones(4)
    while time.perf_counter() < until:
        torch.add(ones, ones)


def run_python(until: float) -> None:
    while time.perf_counter() < until:
        sum(range(1000))


def run_both(until: float) -> None:
    began = time.perf_counter()
    python_seconds = 0.0
    while (turn := time.perf_counter()) < until:
        run_operators(turn + TURN_SECONDS)
        stretch = time.perf_counter()
        run_python(stretch + TURN_SECONDS)
        python_seconds += time.perf_counter() - stretch
    print(f"Python took {100 * python_seconds / (time.perf_counter() - began):.1f} % of the next:")


def wait(until: float) -> None:
    time.sleep(max(0.0, until - time.perf_counter()))


def wait_beside_threads(until: float) -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    wait(until)
    done.set()
    for thread in threads:
        thread.join()


def sampler() -> threading.Thread:
    (found,) = [each for each in threading.enumerate() if each.name == "otel-recfn sampler"]
    return found


def cpu_ns(thread: threading.Thread) -> int:
    return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0))


def share(work: Callable[[float], None], seconds: float) -> float:
    """Our thread's share of a core while the work runs."""
    with profile() as prof:
        torch.ones(4)  # from now on the thread is followed
        thread = sampler()
        began_ns = cpu_ns(thread)
        began = time.perf_counter()
        work(began + seconds)
        took = time.perf_counter() - began
        found = (cpu_ns(thread) - began_ns) / 1e9 / took
    samples = sum(each.count for each in prof.outside())
    sampled = sum(each.time for each in prof.outside()) / 1e6 / took
    print(
        f"{work.__name__:20} {100 * found:6.3f} % of a core, {samples:4} samples,"
        f" of {100 * sampled:5.1f} % of the time"
    )
    return found


def floor_share(seconds: float) -> float:
    """The share of a core of a thread that only wakes 50 times a second: what a look costs at
    least.
    """
    ends = threading.Event()

    def wake() -> None:
        while not ends.is_set():
            time.sleep(PERIOD_SECONDS)

    thread = threading.Thread(target=wake)
    thread.start()
    began_ns = cpu_ns(thread)
    wait(time.perf_counter() + seconds)
    found = (cpu_ns(thread) - began_ns) / 1e9 / seconds
    ends.set()
    thread.join()
    print(f"{'a thread that wakes':20} {100 * found:6.3f} % of a core")
    return found


def main() -> None:
    """Measures all programs and prints them."""
    seconds = sized(float(read_number(__doc__, "seconds", SECONDS)), 0.1)
    floor = floor_share(seconds)
    programs = (run_operators, run_python, run_both, wait, wait_beside_threads)
    most = max(share(work, seconds) for work in programs)
    print(f"the most is {most / GOAL:.2f} of the goal, {100 * GOAL} % of a core")
    if floor:  # on a busy machine that thread may get no turn in a short time
        print(f"and {most / floor:.2f} of what only waking takes")


if __name__ == "__main__":
    main()
