"""Chrome events per second: this package's sink and Kineto's export of the same training run, all
in one process.

    python benchmarks/bench_chrome.py [operators]

Kineto profiles a small model and exports; its events become batches, as the drain hands them over,
and are written by our sink, with the shapes and dtypes that Kineto's file has, and without, as by
default. Every side takes its turn in each round; printed are the median of wall clock, and the
median and the least of processor time, which a busy machine disturbs less. "Encoded only" is the
encoder without links, arrows and file.

Two tables: each file replacing that of the round before, in memory that the page cache has used;
and each file a new one, all of them kept. A virtual machine that touches memory for the first time
waits for its host, which costs more than all else; what the bytes alone cost, written by one call,
stands beside it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from lib.command_line import read_number, sized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from helpers.batches import MAIN_THREAD, WORKER_THREAD, make_batch
from otel_recfn import _native
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import RecordScope, make_event_id
from otel_recfn.sinks.chrome import trace_file as chrome_trace_file
from otel_recfn.sinks.chrome import writer as chrome_writer

ROUNDS = sized(5, 1)
OPERATORS = sized(50_000, 500)
ROWS_PER_BATCH = 20_000


def profiled_training(operators: int) -> Any:
    """A finished profile with about this many events."""
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    data = torch.randn(4, 8)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as finished:
        for _ in range(max(1, operators // 190)):
            with record_function("step"):
                model(data).sum().backward()
    return finished


def batches_of(trace: Path) -> list[Batch]:
    """Kineto's file as sealed batches: rows in order of their ends, thread ids as in
    RecordFunction.
    """
    content = json.loads(trace.read_text())
    slices = [
        event
        for event in content["traceEvents"]
        if event["ph"] == "X" and event["cat"] in ("cpu_op", "user_annotation")
    ]
    main_tid = slices[0]["tid"]
    base_ns = content["baseTimeNanoseconds"]
    rows = sorted(
        (_row(event, main_tid, base_ns) for event in slices), key=lambda row: row["end_ns"]
    )
    return [
        make_batch(rows[first : first + ROWS_PER_BATCH])
        for first in range(0, len(rows), ROWS_PER_BATCH)
    ]


def _row(event: dict[str, Any], main_tid: int, base_ns: int) -> dict[str, Any]:
    args = event["args"]
    thread = MAIN_THREAD if event["tid"] == main_tid else WORKER_THREAD
    start_ns = base_ns + round(event["ts"] * 1000)
    engine = event["name"].startswith("autograd::engine")
    backward = args.get("Fwd thread id", 0) and not engine
    operator = RecordScope.BACKWARD_FUNCTION if backward else RecordScope.FUNCTION
    return {
        "event_id": make_event_id(thread.number, args["Ev Idx"] + 1),
        "name": event["name"],
        "scope": RecordScope.USER_SCOPE if event["cat"] == "user_annotation" else operator,
        "start_ns": start_ns,
        "end_ns": start_ns + round(event["dur"] * 1000),
        "thread": thread,
        "sequence_nr": args.get("Sequence number", -1),
        "forward_thread_id": args.get("Fwd thread id", 0),
        "handle": args["External id"],
        "shapes": json.dumps(args.get("Input Dims", []), separators=(",", ":")),
        "dtypes": json.dumps(args.get("Input type", []), separators=(",", ":")),
    }


def write(batches: list[Batch], path: Path) -> None:
    """All batches through a sink."""
    sink = chrome_writer.TraceWriter(path)
    for batch in batches:
        sink.write(batch)
    sink.close()


def encode_only(batches: list[Batch]) -> None:
    """The encoder, nothing written."""
    memory = bytearray()
    for batch in batches:
        rows = np.argsort(batch.event_id, kind="stable").astype(np.int64, copy=False)
        for first in range(0, len(rows), chrome_trace_file.ROWS_AT_ONCE):
            chosen = rows[first : first + chrome_trace_file.ROWS_AT_ONCE]
            _native.encode_chrome_events(batch, chosen, pid=1, base_ns=0, memory=memory, ids=None)


class Cost(NamedTuple):
    """Seconds that a call took."""

    wall: float
    cpu: float


def cost(work: Callable[[], object]) -> Cost:
    """Of one call."""
    cpu = time.process_time()
    wall = time.perf_counter()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def in_one_piece(batches: list[Batch]) -> bytes:
    """The trace of these batches."""
    with tempfile.TemporaryDirectory() as folder:
        write(batches, Path(folder) / "ours.json")
        return (Path(folder) / "ours.json").read_bytes()


def without_shapes(batches: list[Batch]) -> list[Batch]:
    """What is recorded by default."""
    nothing = [np.zeros(len(batch), np.uint32) for batch in batches]
    return [
        batch.take(slice(None), shapes=zeros, dtypes=zeros)
        for batch, zeros in zip(batches, nothing, strict=True)
    ]


def one_round(operators: int, batches: list[Batch], place: Path) -> dict[str, Cost]:
    """Every side once, to a new file.

    Kineto saves a profile only once, so it gets new ones, whose making does not count.
    """
    profiles = [profiled_training(operators) for _ in range(2)]
    plain = without_shapes(batches)
    content = in_one_piece(batches)
    return {
        "Kineto .json": fresh(
            place / "kineto.json", lambda path: profiles[0].export_chrome_trace(str(path))
        ),
        "Kineto .json.gz": fresh(
            place / "kineto.json.gz", lambda path: profiles[1].export_chrome_trace(str(path))
        ),
        "ours, encoded only": cost(lambda: encode_only(batches)),
        "ours .json": fresh(place / "ours.json", lambda path: write(batches, path)),
        "ours .json.gz": fresh(place / "ours.json.gz", lambda path: write(batches, path)),
        "ours .json, no shapes": fresh(place / "plain.json", lambda path: write(plain, path)),
        "ours .json.gz, no shapes": fresh(place / "plain.json.gz", lambda path: write(plain, path)),
        "the bytes of ours.json alone": fresh(
            place / "raw.json", lambda path: path.write_bytes(content)
        ),
    }


def fresh(path: Path, work: Callable[[Path], object]) -> Cost:
    """Of writing a new file.

    The last one, where there is one, goes first: its memory is used again.
    """
    path.unlink(missing_ok=True)
    return cost(lambda: work(path))


def report(title: str, rounds: list[dict[str, Cost]], events: int) -> None:
    """One line per side, with how many times faster than Kineto it is."""
    print(f"\n{events:,} events (slices), {len(rounds)} rounds, {title}")
    print(
        f"{'':<28}{'ns/event':>10}{'cpu ns':>10}{'least cpu':>10}{'events/s':>14}{'x Kineto':>10}"
    )
    kineto = statistics.median(taken["Kineto .json"].wall for taken in rounds)
    for name in rounds[0]:
        wall = statistics.median(taken[name].wall for taken in rounds)
        cpu = sorted(taken[name].cpu / events * 1e9 for taken in rounds)
        print(
            f"{name:<28}{wall / events * 1e9:>10,.0f}"
            f"{statistics.median(cpu):>10,.0f}{cpu[0]:>10,.0f}",
            end="",
        )
        print(f"{events / wall:>14,.0f}{kineto / wall:>10.2f}")


def main() -> None:
    """Measures every side in turns and prints the medians."""
    operators = read_number(__doc__, "operators", OPERATORS)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        profiled_training(operators).export_chrome_trace(str(place / "kineto.json"))
        batches = batches_of(place / "kineto.json")
        events = sum(map(len, batches))
        new = [
            one_round(operators, batches, Path(tempfile.mkdtemp(dir=place))) for _ in range(ROUNDS)
        ]
        report("every file in memory that no file of ours has used", new, events)
        one_round(operators, batches, place)
        report(
            "every file in the memory of the one before",
            [one_round(operators, batches, place) for _ in range(ROUNDS)],
            events,
        )
        for name in ("kineto.json", "kineto.json.gz", "ours.json", "ours.json.gz"):
            print(f"{name:<28}{(place / name).stat().st_size / 1e6:>10,.1f} MB")


if __name__ == "__main__":
    main()
