"""Forks at random moments from four busy threads of an observed program, and counts the children
that hang or fail.

    python tests/soak/fork_soak.py --forks 5000 --method os.fork --seed 1

The threads record ranges and run PyTorch's operators, start and stop profiles, run legacy
profilers, add and remove callbacks, log, and flush, beside the threads of the instrumentation
itself; each forks in between. A child uses numpy, torch, imports, logging and all of the above,
sends a span, and leaves. One that takes longer than ``--child-seconds`` hangs: the stacks of its
threads are shown, and it is killed. The exit code is 1 where a child hung or failed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import io
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_recfn import OtelRecordFunctionInstrumentor, profile, record_function
from otel_recfn.legacy import (
    ProfilerConfig,
    ProfilerState,
    disable_profiler_legacy,
    enable_profiler_legacy,
)
from otel_recfn.observing import RecordFunctionCallback, add_global_callback, remove_callback

METHODS = ("os.fork", "fork", "spawn", "forkserver")
THREADS = 4
LATE_IMPORTS = ("numpy.ma", "xml.dom.minidom", "encodings.idna", "html.parser")
"""What the parent has not imported, or a lazy library may be about to."""

log = logging.getLogger("fork_soak")
exported: Counter[int] = Counter()
"""Spans that this process exported, by the process that they began in."""


class CountingExporter(SpanExporter):
    """Counts spans by the process id that their resource was made in; a child must not send its
    parent's.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            exported[int((span.attributes or {}).get("pid", os.getpid()))] += 1  # type: ignore[arg-type]
        return SpanExportResult.SUCCESS


TRACES = "FORK_SOAK_TRACES"
"""Names the directory of the traces to spawned children."""


def observe() -> OtelRecordFunctionInstrumentor:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(CountingExporter()))
    trace.set_tracer_provider(provider)
    instrumentor = OtelRecordFunctionInstrumentor()
    instrumentor.instrument(
        chrome_trace=os.path.join(os.environ[TRACES], f"trace-{os.getpid()}.json")
    )
    return instrumentor


# --- what the threads do


def operators() -> None:
    with (
        trace.get_tracer("soak").start_as_current_span("work", attributes={"pid": os.getpid()}),
        record_function("range"),
    ):
        torch.ones(8).add(1).sum()


def profiles() -> None:
    with profile() as prof, record_function("profiled"):
        torch.ones(8).add(1)
    assert any(event.name == "profiled" for event in prof.events())


def legacy() -> None:
    enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU))
    try:
        torch.ones(8).add(1)
    finally:
        disable_profiler_legacy()


def callbacks() -> None:
    handle = add_global_callback(RecordFunctionCallback(lambda range_: None).sampling_prob(0.5))
    torch.ones(8).add(1)
    remove_callback(handle)


def logs() -> None:
    log.warning("a line")
    np.unique(np.arange(8) % 3)


def flushes() -> None:
    OtelRecordFunctionInstrumentor().flush(5.0)


WORK: dict[str, Callable[[], None]] = {
    work.__name__: work for work in (operators, profiles, legacy, logs, callbacks, flushes)
}


# --- what a child does


def use_everything() -> None:
    for name in LATE_IMPORTS:
        importlib.import_module(name)
    for work in WORK.values():
        work()
    x = torch.randn(16, 16)
    assert np.isfinite(np.sort(x.numpy().sum(axis=0))).all()
    assert OtelRecordFunctionInstrumentor().flush(5.0)
    foreign = [pid for pid in exported if pid != os.getpid()]
    assert exported[os.getpid()] > 0, "nothing of the child was exported"
    assert not foreign, f"spans of the processes {foreign} were exported by their child"


def child(seconds: float) -> None:
    """In the child: 0 where all went well; faulthandler ends one that hangs, with its stacks."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    exported.clear()
    use_everything()


def fresh_child(seconds: float) -> None:
    """A child that inherits nothing: it sets itself up."""
    quiet()
    instrumentor = observe()
    child(seconds)
    instrumentor.uninstrument()


# --- forking


class Soak:
    """Forks and counts.

    Args:
        child_seconds: what a child may take.
    """

    def __init__(self, forks: int, method: str, seed: int, child_seconds: float) -> None:
        self._left, self._method, self._seed, self._child_seconds = (
            forks,
            method,
            seed,
            child_seconds,
        )
        self._taking = threading.Lock()
        self._reaping = threading.Lock()
        """Only one thread may look at children: multiprocessing says 255 where two read one
        child's exit code.
        """
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        """Until all forks are made and all children have ended."""
        threads = [
            threading.Thread(target=self._thread, args=(number,), name=f"busy {number}")
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _thread(self, number: int) -> None:
        chance = random.Random(self._seed * THREADS + number)
        while self._take():
            until = time.monotonic() + chance.uniform(0, 0.02)
            while time.monotonic() < until:
                self._work(chance)
            self.outcomes[self._fork()] += 1

    def _take(self) -> bool:
        with self._taking:
            self._left -= 1
            return self._left >= 0

    def _work(self, chance: random.Random) -> None:
        try:
            chance.choice(list(WORK.values()))()
        except Exception:
            self.outcomes["failed work in the parent"] += 1
            traceback.print_exc()

    def _fork(self) -> str:
        if self._method == "os.fork":
            return self._os_fork()
        context = multiprocessing.get_context(self._method)
        target: Callable[[float], None] = child if self._method == "fork" else fresh_child
        process = context.Process(target=target, args=(self._child_seconds,))  # type: ignore[attr-defined]
        with self._reaping:
            process.start()
        until = self._latest_end()
        while (code := self._exit_code(process)) is None:
            if time.monotonic() > until:
                return show_and_kill(process.pid or 0)
            multiprocessing.connection.wait([process.sentinel], 0.1)
        return "fine" if code == 0 else f"exit code {code}"

    def _exit_code(self, process: multiprocessing.process.BaseProcess) -> int | None:
        with self._reaping:
            return process.exitcode

    def _os_fork(self) -> str:
        pid = os.fork()
        if pid == 0:
            leave_after(lambda: child(self._child_seconds))
        return self._wait(pid)

    def _latest_end(self) -> float:
        """Of a child that begins now: its watchdog ends it before."""
        return time.monotonic() + self._child_seconds + 10

    def _wait(self, pid: int) -> str:
        until = self._latest_end()
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return "fine" if code == 0 else f"exit code {code}"
            time.sleep(0.001)
        outcome = show_and_kill(pid)
        os.waitpid(pid, 0)
        return outcome


def show_and_kill(pid: int) -> str:
    """A child that hangs where its watchdog is not set: the handler that it inherited shows the
    stacks of its threads.
    """
    with contextlib.suppress(ProcessLookupError):  # it has ended now: too late all the same
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
    return "hung before its watchdog"


def leave_after(work: Callable[[], None]) -> None:
    """As a child of os.fork leaves, whatever happens."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


# --- the program


def quiet() -> None:
    """Log lines go nowhere, through a handler with a lock of its own; one OpenMP thread, which a
    fork would lose.
    """
    logging.basicConfig(handlers=[logging.StreamHandler(io.StringIO())])
    warnings.simplefilter("ignore")  # of forks beside threads, and of more workers than processors
    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forks", type=int, default=5000)
    parser.add_argument("--method", choices=METHODS, default="os.fork")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--child-seconds", type=float, default=30.0)
    asked = parser.parse_args()
    print(f"{asked.forks} x {asked.method}, --seed {asked.seed}", flush=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    quiet()
    # Else each child imports them for seconds.
    multiprocessing.set_forkserver_preload(["numpy", "torch", "otel_recfn"])
    soak = Soak(asked.forks, asked.method, asked.seed, asked.child_seconds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fork-soak-") as os.environ[TRACES]:
        instrumentor = observe()
        for work in WORK.values():
            work()  # compiles what is missing
        soak.run()
        instrumentor.uninstrument()
    print(f"{time.monotonic() - began:.1f} s: {dict(soak.outcomes)}")
    return int(set(soak.outcomes) != {"fine"})


if __name__ == "__main__":
    sys.exit(main())
