"""Trains the small transformer with every operator observed, shows one step as a tree, and ends
with the report.

python examples/demo.py [arguments of train.py]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

import train
from otel_recfn import OtelRecordFunctionInstrumentor
from otel_recfn.report.files import read_processes
from otel_recfn.report.page import open_page
from otel_recfn.report.report import Report
from telemetry import Telemetry, describe

OUTPUT = Path("demo-out")
SERVICE = "otel-recfn-demo"
LOSSES = ("dropped", "failed", "incomplete")
"""What is in the names of counters that say what was lost."""


def main(argv: Sequence[str] | None = None) -> None:
    """The demo."""
    # The first steps are slower than the rest.
    shown_step = min(12, train.arguments(argv).steps - 1)

    def wanted(span: ReadableSpan) -> bool:
        return span.name == "step" and (span.attributes or {}).get("step") == shown_step

    print(f"Writes some 8 MB into {OUTPUT}/.", flush=True)
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.glob("trace*.json.gz"):
        old.unlink()
    telemetry = Telemetry(SERVICE, OUTPUT / "spans.jsonl", wanted)
    chrome_trace = OUTPUT / "trace.json.gz"
    counters = observed_training(argv, telemetry, chrome_trace)
    telemetry.print_tree()
    print_losses(counters)
    print(
        f"\n{telemetry.where()}\n    Service {SERVICE}: 'epoch' holds 'step', and 'step' the"
        " modules and operators."
    )
    print(f"Every operator of every thread, for https://ui.perfetto.dev: {describe(chrome_trace)}")
    print("    Beside it, trace.pid*.json.gz: the same of each process that loaded data.")
    print_report(chrome_trace, OUTPUT / "report.html")


def observed_training(
    argv: Sequence[str] | None, telemetry: Telemetry, chrome_trace: Path
) -> dict[str, int]:
    """Trains between instrument() and uninstrument()."""
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(tracer_provider=telemetry.provider, chrome_trace=str(chrome_trace))
    try:
        train.main(argv)
        instrumentor.flush(60)
    finally:
        instrumentor.uninstrument()
        telemetry.close()
    # Now, because what could not be sent by the end is counted then.
    return dict(instrumentor.counters())


def print_report(chrome_trace: Path, page: Path) -> None:
    """Writes the report of the trace, opens it where there is a screen, and says what took the
    time.
    """
    report = Report(read_processes([chrome_trace]), "otel-recfn demo")
    report.write(page)
    open_page(page)
    print(f"\nA picture of it, in any browser: {describe(page)}")
    for sentence in report.sentences():
        print(f"    {sentence}")


def print_losses(counters: dict[str, int]) -> None:
    """What was recorded and where it went, if some of it was lost."""
    lost = {
        name: count
        for name, count in counters.items()
        if count and any(word in name for word in LOSSES)
    }
    if lost:
        print("\nNot everything arrived:")
        for name in ("recorded", "exported", *lost):
            print(f"    {name:<40} {counters[name]:>12,}")


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # the tree's lines, on a terminal that lacks them
    main()
