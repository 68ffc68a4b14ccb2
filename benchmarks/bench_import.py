"""What `import otel_recfn` takes beyond importing the OpenTelemetry API. Target: under 60 ms.

python benchmarks/bench_import.py [rounds]
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from lib.command_line import read_number, sized

ROUNDS = sized(15, 1)
BASE = "import opentelemetry.trace, opentelemetry.context"
PROGRAM = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
STATEMENTS = {
    "the OpenTelemetry API": BASE,
    "... and otel_recfn": f"{BASE}; import otel_recfn",
    "... and record_function": f"{BASE}; from otel_recfn import record_function",
    "... and the instrumentor": f"{BASE}; from otel_recfn import OtelRecordFunctionInstrumentor",
}


def milliseconds(statement: str) -> float:
    """One import in a fresh interpreter."""
    command = [sys.executable, "-c", PROGRAM.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1000


def main() -> None:
    """Prints the median of each, all sides taken in turns."""
    rounds = read_number(__doc__, "rounds", ROUNDS)
    taken = [
        {name: milliseconds(statement) for name, statement in STATEMENTS.items()}
        for _ in range(rounds)
    ]
    medians = {name: statistics.median(each[name] for each in taken) for name in STATEMENTS}
    base = next(iter(medians.values()))
    for name, median in medians.items():
        print(
            f"import {name:<28} {median:8.1f} ms   {median - base:+8.1f} ms   x {median / base:.2f}"
        )


if __name__ == "__main__":
    main()
