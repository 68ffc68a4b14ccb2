"""What samples of Python cost: our thread's CPU time, as a share of a core.

    python benchmarks/bench_python_samples.py [seconds]

Four programs run for so many seconds each: one of nothing but operators, which are never sampled;
one of Python alone, which each look finds; one that waits; and one that waits beside many threads,
whose clocks are read. The floor is a thread that only wakes as often.
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
GOAL = 0.002
"""The share of a core that samples may take."""


def run_operators(until: float) -> None:
    ones = torch.ones(4)
    while time.perf_counter() < until:
        torch.add(ones, ones)


def run_python(until: float) -> None:
    while time.perf_counter() < until:
        sum(range(1000))


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
        found = (cpu_ns(thread) - began_ns) / 1e9 / (time.perf_counter() - began)
        samples = sum(each.count for each in prof.outside())
    print(f"{work.__name__:20} {100 * found:6.3f} % of a core, {samples} samples")
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
    programs = (run_operators, run_python, wait, wait_beside_threads)
    most = max(share(work, seconds) for work in programs)
    print(f"the most is {most / GOAL:.2f} of the goal, {100 * GOAL} % of a core")
    if floor:  # on a busy machine that thread may get no turn in a short time
        print(f"and {most / floor:.2f} of what only waking takes")


if __name__ == "__main__":
    main()
