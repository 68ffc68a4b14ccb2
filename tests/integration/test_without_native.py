"""Without the native part: ranges do nothing, and whoever wants to record is told in one error
how to get it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

BLOCKED = """
import sys
sys.modules["otel_recfn._native"] = None
"""
WAY_OUT = "pip install --force-reinstall --no-cache-dir"


def test_ranges_and_steps_do_nothing(run_program: Run) -> None:
    done = run_program(
        BLOCKED
        + """
import asyncio
from otel_recfn import batch, record_function, step
for kind in (record_function, step):
    with kind("with"):
        pass
    @kind("decorated")
    def decorated(x):
        return x + 1
    assert decorated(1) == 2
    async def work():
        async with kind("async with"):
            return 3
    assert asyncio.run(work()) == 3
    try:
        kind(decorated)
    except TypeError:
        pass
    else:
        raise SystemExit("it takes a function for a name")
contexts = iter([None])
with step(), step("train", 3), record_function("load", "args"), batch(contexts, "decode"):
    assert list(contexts) == []
"""
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    "what",
    [
        "otel_recfn.OtelRecordFunctionInstrumentor().instrument()",
        "from otel_recfn import profile\nprofile(record_shapes=True)",
        "from otel_recfn.observing import RecordFunction\nRecordFunction()",
        (
            "from otel_recfn import"
            " observing\nobserving.add_global_callback(observing.RecordFunctionCallback(print))"
        ),
        "from otel_recfn.observing import RecordFunction\nRecordFunction.current_thread_id()",
        "from otel_recfn.observing import propagate\npropagate(print)",
        (
            "from otel_recfn.observing import PropagatingThread\nclass Thread(PropagatingThread):"
            " pass\nThread(target=print)"
        ),
        "from otel_recfn.observing import has_callbacks\nhas_callbacks()",
        "import otel_recfn.legacy\notel_recfn.legacy.profiler_enabled()",
        "from otel_recfn.legacy import RecordProfile\nRecordProfile('steps.trace')",
        "from otel_recfn.tracing import trace\ntrace(len, [])",
        "import otel_recfn.tracing.wrappers",
        "from otel_recfn import _native",
    ],
)
def test_who_wants_to_record_is_told(run_program: Run, what: str) -> None:
    program = (
        "import otel_recfn\nfrom otel_recfn.errors import RecorderUnavailable\ntry:\n   "
        f" exec({what!r})\n"
    )
    done = run_program(f"{BLOCKED}{program}except RecorderUnavailable as error:\n    print(error)")
    assert "nothing is recorded" in done.stdout
    assert WAY_OUT in done.stdout


def test_public_modules_can_be_imported(run_program: Run) -> None:
    """What needs no native part works."""
    done = run_program(
        BLOCKED
        + """
from otel_recfn import *
import otel_recfn
import otel_recfn.legacy, otel_recfn.observing, otel_recfn.tracing
from otel_recfn.legacy import LegacyEvent, ProfilerConfig, ThreadEventLists, mark
from otel_recfn.observing import (
    INVALID_CALLBACK_HANDLE, DebugInfoKind, RecordFunction, RecordFunctionCallback,
    ThreadLocalState,
)
from otel_recfn.tracing import *

assert {*otel_recfn.__all__} <= {*globals()}
assert issubclass(type(Graph), type) and TraceError.__module__ == "otel_recfn.errors"
sink = InMemorySink()
sink.clear()
assert (sink.events(), sink.dropped) == ([], 0)
callback = RecordFunctionCallback(print).scopes({RecordScope.USER_SCOPE})
assert callback.check_scope(RecordScope.USER_SCOPE) and INVALID_CALLBACK_HANDLE == 0
assert DebugInfoKind.TEST_INFO == 5
assert not isinstance(callback, RecordFunction)
for module in (otel_recfn, otel_recfn.legacy, otel_recfn.observing, otel_recfn.tracing):
    assert not hasattr(module, "no_such_name")
def annotated(range_: RecordFunction | None, graph: Graph | None) -> ThreadLocalState | None: ...
"""
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_automatic_instrumentation_logs_one_line_and_goes_on(run_program: Run) -> None:
    done = run_program(
        BLOCKED
        + """
import logging
logging.basicConfig()
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
print("went on")
"""
    )
    assert done.stdout == "went on\n"
    [line] = done.stderr.splitlines()
    assert "otel-recfn is not instrumenting" in line
    assert WAY_OUT in line


def test_the_doctor_says_it(run_program: Run) -> None:
    done = run_program(BLOCKED + 'from otel_recfn.cli import main\nassert main(["doctor"]) == 1')
    assert WAY_OUT in done.stdout
    assert "could not be examined" not in done.stdout
