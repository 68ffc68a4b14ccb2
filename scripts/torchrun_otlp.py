"""What two ranks under torchrun, and the workers of a DataLoader of one of them, export with
``span_exporter``.

python scripts/torchrun_otlp.py

Each rank does its work below the trace that the launcher began, and its requests say which rank it
is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = f"00-{0xABC:032x}-{0xDEF:016x}-01"
EXPECTED = {("rank work", 0, 2): 1, ("rank work", 1, 2): 1, ("load", 0, 2): 4}


def rank() -> None:
    """One of the processes that torchrun begins."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from otel_recfn import OtelRecordFunctionInstrumentor, record_function

    trace.set_tracer_provider(TracerProvider())
    OtelRecordFunctionInstrumentor().instrument(span_exporter="otlp-http", span_budget=None)
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            with record_function("load"):
                return torch.ones(1) * index

    distributed.init_process_group("gloo")
    with record_function("rank work"):
        distributed.all_reduce(torch.ones(2))
    if distributed.get_rank() == 0:
        assert len(list(DataLoader(Numbers(), num_workers=2))) == 4
    distributed.destroy_process_group()


def main() -> None:
    """Begins them, and says what came."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.otlp_server import OtlpServer

    found: Counter[tuple[str, int, int]] = Counter()
    with OtlpServer("http") as server:
        variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": server.endpoint, "TRACEPARENT": LAUNCHER}
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc_per_node=2",
            "--rdzv-id=job",
            __file__,
            "rank",
        ]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        resources = server.resource_spans
    traces = set()
    for one in resources:
        attributes = {each.key: each.value.int_value for each in one.resource.attributes}
        for span in [span for scope in one.scope_spans for span in scope.spans]:
            traces.add(span.trace_id.hex())
            found[span.name, attributes["recfn.rank"], attributes["recfn.world_size"]] += 1
    for (name, number, size), count in sorted(found.items()):
        print(f"rank {number} of {size}: {count} x {name}")
    missing = {key: count for key, count in EXPECTED.items() if found[key] != count}
    if missing or traces != {f"{0xABC:032x}"}:
        raise SystemExit(f"not what was expected: {missing or traces}")


if __name__ == "__main__":
    rank() if sys.argv[1:] else main()
