"""An instrumentation that always ends, and what programs in processes of their own need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import otel_recfn
from helpers.exported_traces import Traces
from helpers.prepared_programs import PreparedPrograms
from helpers.timeouts import PATIENCE_S
from otel_recfn import OtelRecordFunctionInstrumentor, observing
from otel_recfn.model.batch import Event
from otel_recfn.sinks.in_memory import InMemorySink

if TYPE_CHECKING:
    from helpers.recorded_modules import Recording

SOURCE = Path(otel_recfn.__file__).parents[1]
HELPERS = Path(__file__).parents[1]
PROGRAM_SECONDS = 2 * PATIENCE_S


class Instrumented:
    """An instrumentation with an InMemorySink of its own.

    Args:
        keywords: of ``instrument()``; further ``sinks`` come after ours.
    """

    def __init__(self, **keywords: Any) -> None:
        self.sink = InMemorySink(max_events=10_000_000)
        self.instrumentor = OtelRecordFunctionInstrumentor()
        self.instrumentor.instrument(sinks=[self.sink, *keywords.pop("sinks", ())], **keywords)

    def events(self) -> list[Event]:
        """What was recorded and closed so far."""
        assert self.instrumentor.flush(PATIENCE_S)
        return self.sink.events()

    def forget(self) -> None:
        """What was recorded so far is not looked at."""
        assert self.instrumentor.flush(PATIENCE_S)
        self.sink.clear()

    def finish(self) -> list[Event]:
        """Uninstrument; everything that was recorded."""
        self.instrumentor.uninstrument()
        return self.sink.events()

    def counters(self) -> dict[str, int]:
        return self.instrumentor.counters()


@pytest.fixture
def no_callbacks_left() -> Iterator[None]:
    """Callbacks that the test added are removed after it."""
    yield
    observing.clear_callbacks()


@pytest.fixture
def one() -> Any:
    """A tensor."""
    return pytest.importorskip("torch").ones(2)


@pytest.fixture
def recording() -> Iterator[Recording]:
    """The ranges of modules and optimizers, recorded until the test is over."""
    from helpers.recorded_modules import Recording

    made = Recording()
    yield made
    made.ranges.disable()
    made.recorder.stop()


@pytest.fixture
def forget_what_was_compiled() -> Iterator[None]:
    """By torch.compile, in the test."""
    yield
    pytest.importorskip("torch")._dynamo.reset()


@pytest.fixture
def capturing() -> Iterator[None]:
    """PyTorch puts ranges into graphs."""
    from helpers.compiled_forms import CAPTURE

    with pytest.importorskip("torch")._dynamo.config.patch({CAPTURE: True}):
        yield


@pytest.fixture
def instrument() -> Iterator[Callable[..., Instrumented]]:
    """Makes an Instrumented; what is left of it at the end of the test is uninstrumented."""
    yield Instrumented
    OtelRecordFunctionInstrumentor().uninstrument()


@pytest.fixture
def traces() -> Iterator[Traces]:
    """An instrumented program; what is left of it at the end of the test is uninstrumented."""
    made = Traces()
    yield made
    made.instrumentor.uninstrument()


Run: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]
Start: TypeAlias = (
    "Callable[[Path, tuple[str, ...], dict[str, str]], subprocess.CompletedProcess[str]]"
)


@pytest.fixture
def run_program(tmp_path: Path) -> Run:
    """Runs Python source in a process of its own, in a directory of its own, and checks its exit
    code.

    Its environment has none of the OTEL_* variables of this one, but those given as keywords, and
    no samples, which a slow machine takes of any program.
    """
    return partial(run_in, tmp_path, started)


@pytest.fixture(scope="session")
def run_by() -> Callable[..., Run]:
    """The same for a directory and a command that are given."""
    return lambda directory, *interpreter: partial(
        run_in, directory, partial(started, interpreter=interpreter)
    )


@pytest.fixture
def run_prepared(tmp_path: Path) -> Callable[[PreparedPrograms], Run]:
    """The same for a program whose first imports are done already."""
    return lambda programs: partial(
        run_in, tmp_path, partial(programs.run, timeout_s=PROGRAM_SECONDS)
    )


@pytest.fixture
def run_with_torch(
    run_prepared: Callable[[PreparedPrograms], Run], with_torch: PreparedPrograms
) -> Run:
    """The same for a program that begins with `import torch`."""
    return run_prepared(with_torch)


@pytest.fixture
def run_with_dynamo(
    run_prepared: Callable[[PreparedPrograms], Run], with_dynamo: PreparedPrograms
) -> Run:
    """The same for a program that begins with `import torch, torch._dynamo`."""
    return run_prepared(with_dynamo)


def run_in(
    directory: Path, start: Start, program: str, *arguments: str, code: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    script = directory / "program.py"
    script.write_text(program)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") or name == "OTEL_RECFN_CACHE_DIR"
    }
    own = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{HELPERS}", "OTEL_RECFN_OUTSIDE": "false"}
    done = start(script, arguments, {**kept, **own, **environment})
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def started(
    script: Path,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    interpreter: tuple[str, ...] = (sys.executable,),
) -> subprocess.CompletedProcess[str]:
    command = [*interpreter, str(script), *arguments]
    return subprocess.run(
        command,
        env=environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )


@pytest.fixture(scope="session")
def with_torch() -> Iterator[PreparedPrograms]:
    yield from prepared("torch")


@pytest.fixture(scope="session")
def with_dynamo() -> Iterator[PreparedPrograms]:
    yield from prepared("torch", "torch._dynamo")


def prepared(*modules: str) -> Iterator[PreparedPrograms]:
    pytest.importorskip("torch")
    programs = PreparedPrograms(*modules)
    yield programs
    programs.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Programs with torch are not run where there is none."""
    if importlib.util.find_spec("torch") is not None:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
