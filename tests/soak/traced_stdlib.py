"""Runs test modules of the standard library while their Python calls are traced: they must pass as they do untraced.

    .venv/bin/python tests/soak/traced_stdlib.py [module ...]

Each module runs twice in a process of its own, untraced and traced. What fails only when traced runs once more while ranges are
recorded without tracing calls: what fails there too is not the tracer's doing, and is told as such.
"""

from __future__ import annotations

import subprocess
import sys

MODULES = ("test_generators", "test_coroutines", "test_exceptions", "test_threading")
RUN = """
import contextlib, sys, unittest
from otel_recfn import profile

ways = {"plain": contextlib.nullcontext, "traced": lambda: profile(python_calls=True, max_events=100_000), "recorded": profile}
traced = ways[sys.argv[2]]()
suite = unittest.defaultTestLoader.loadTestsFromName("test." + sys.argv[1])
with traced:
    result = unittest.TextTestRunner(verbosity=0, stream=open("/dev/null", "w")).run(suite)
for test, _ in result.failures + result.errors:
    print("FAILED", test.id())
print("RAN", result.testsRun)
if sys.argv[2] == "traced":
    traced_rows = len(traced.events())
    print("ROWS", traced_rows)
"""
MOST_SECONDS = 900


def main(modules: tuple[str, ...]) -> int:
    failed_more = False
    for module in modules:
        plain, traced = _run(module, "plain"), _run(module, "traced")
        only_traced = sorted({line for line in traced if line.startswith("FAILED")} - set(plain))
        numbers = ", ".join(line.lower() for line in traced if not line.startswith("FAILED"))
        of_recording = set(_run(module, "recorded")) if only_traced else set()
        ours = [line for line in only_traced if line not in of_recording]
        failed_already = sum(line.startswith("FAILED") for line in plain)
        print(f"{module}: {numbers}; {failed_already} fail untraced, {len(only_traced)} only when traced", flush=True)
        for line in only_traced:
            print("   ", line, "" if line in ours else "(recorded without tracing, too)")
        failed_more = failed_more or bool(ours)
    return int(failed_more)


def _run(module: str, how: str) -> list[str]:
    command = [sys.executable, "-c", RUN, module, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "RAN", "ROWS"))]
    if done.returncode:
        lines.append(f"FAILED with exit code {done.returncode}: {done.stderr[-500:]}")
    return lines


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or MODULES))
