"""In a subinterpreter: recording is refused in words, ranges record nothing, and the main interpreter records on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from prepared_programs import PreparedPrograms

PROGRAM = """
import faulthandler, sys
faulthandler.dump_traceback_later(60, exit=True)
kind, main_records, *programs = sys.argv[1:]

if main_records == "yes":
    from otel_recfn import InMemorySink, OtelRecordFunctionInstrumentor, record_function
    sink, instrumentor = InMemorySink(), OtelRecordFunctionInstrumentor()
    instrumentor.instrument(sinks=[sink])
    with record_function("before"):
        pass

def run(code):
    if kind == "legacy":
        import _testcapi
        return _testcapi.run_in_subinterp(code)
    try:
        import _interpreters as interpreters
        made = interpreters.create(kind)
    except ImportError:
        import _xxsubinterpreters as interpreters
        made = interpreters.create(isolated=kind == "isolated")
    interpreters.run_string(made, code)
    interpreters.destroy(made)

for what in programs:
    code = "try:\\n" + "\\n".join("    " + line for line in what.splitlines()) + "\\nexcept BaseException as error:\\n"
    run(code + "    print('raised', type(error).__name__, error, flush=True)\\n")
    print("END", flush=True)

if main_records == "yes":
    @record_function("decorated after")
    def decorated(): pass
    with record_function("after"):
        decorated()
    assert instrumentor.flush(300)
    print(sorted(event.name for event in sink.events()))
    instrumentor.uninstrument()
print("over")
"""
RANGE = """
from otel_recfn import record_function
from opentelemetry import context
context.attach(context.get_current())
with record_function("inside"):
    pass
decorated = record_function("decorated inside")(lambda: 1)
print("ran", decorated())
"""
INSTRUMENT = """
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument()
"""
AUTOMATIC = """
from otel_recfn import OtelRecordFunctionInstrumentor
OtelRecordFunctionInstrumentor().instrument(skip_dep_check=True)
print("went on")
"""
PROFILE = """
from otel_recfn import profile, record_function, step
with record_function("inside"), step("inside"):
    profile()
"""
NATIVE = "import otel_recfn._native"
PROGRAMS = (RANGE, INSTRUMENT, AUTOMATIC, PROFILE, NATIVE)
KINDS = ("legacy", "isolated") if sys.version_info >= (3, 12) else ("legacy", "isolated", "shared")
WRAPT_BREAKS_IT = sys.version_info[:2] == (3, 12)
"""CPython 3.12 aborts when an isolated interpreter ends that imported asyncio, as wrapt and so OpenTelemetry does."""


def runs_in(kind: str, what: str) -> bool:
    return what in (RANGE, NATIVE) or not (WRAPT_BREAKS_IT and kind == "isolated")


@pytest.fixture(scope="module")
def prepared() -> Iterator[PreparedPrograms]:
    """For a main interpreter that records, has imported what ours imports of others."""
    programs = PreparedPrograms("numpy", "opentelemetry.sdk.trace", "opentelemetry.instrumentation.instrumentor")
    yield programs
    programs.close()


Told: TypeAlias = dict[str, list[str]]


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, ...], Told]:
    """What was told in each of the main interpreters that have run so far."""
    return {}


@pytest.fixture
def told(
    run_program: Callable[..., Any],
    run_prepared: Callable[[PreparedPrograms], Callable[..., Any]],
    prepared: PreparedPrograms,
    runs: dict[tuple[str, ...], Told],
) -> Callable[[str, str, str], list[str]]:
    """What a program says in a subinterpreter of its own; those of all programs run in one main interpreter."""

    def run(kind: str, main_records: str) -> Told:
        start = run_prepared(prepared) if main_records == "yes" else run_program
        programs = [what for what in PROGRAMS if runs_in(kind, what)]
        done = start(PROGRAM, kind, main_records, *programs)
        *said, last = done.stdout.split("END\n")
        assert last.splitlines() == [*(["['after', 'before', 'decorated after']"] if main_records == "yes" else []), "over"]
        return dict(zip(programs, map(str.splitlines, said), strict=True))

    def of(what: str, kind: str, main_records: str) -> list[str]:
        if kind == "legacy":
            pytest.importorskip("_testcapi")
        if not runs_in(kind, what):
            pytest.skip("wrapt breaks isolated interpreters here")
        key = kind, main_records
        if key not in runs:
            runs[key] = run(kind, main_records)
        return runs[key][what]

    return of


@pytest.mark.parametrize("main_records", ["yes", "no"])
@pytest.mark.parametrize("kind", KINDS)
class TestSubinterpreter:
    def test_a_range_records_nothing(self, told: Callable[..., list[str]], kind: str, main_records: str) -> None:
        assert told(RANGE, kind, main_records) == ["ran 1"]

    @pytest.mark.parametrize("what", [INSTRUMENT, PROFILE], ids=["instrument", "profile"])
    def test_recording_is_refused(self, told: Callable[..., list[str]], kind: str, main_records: str, what: str) -> None:
        (line,) = told(what, kind, main_records)
        assert line.startswith("raised RecorderUnavailable otel-recfn records in the main interpreter only")

    def test_automatic_instrumentation_goes_on_with_the_next(
        self, told: Callable[..., list[str]], kind: str, main_records: str
    ) -> None:
        assert told(AUTOMATIC, kind, main_records) == ["went on"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_native_part_is_the_main_interpreters(told: Callable[..., list[str]], kind: str) -> None:
    (line,) = told(NATIVE, kind, "yes")
    assert "otel-recfn records in the main interpreter only" in line or "No module" in line


def test_cpython_still_tells_interpreters_apart() -> None:
    from importlib import import_module

    from otel_recfn.support.native_part import INTERPRETERS

    module = import_module(INTERPRETERS)
    assert module.get_current() == module.get_main()
