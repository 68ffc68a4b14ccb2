"""The package's names are what they say, whatever was imported before them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest

import otel_recfn
from helpers.timeouts import PATIENCE_S
from otel_recfn import errors, legacy, observing
from otel_recfn.settings.table import ProfileSettings, Settings

NAMES = (
    "InMemorySink OtelRecordFunctionInstrumentor PythonCalls RecordScope Sink __version__ batch"
    " profile record_function step"
)
NAMES_OF_OBSERVING = """
    DebugInfoGuard DebugInfoKind DisableRecordFunctionGuard INVALID_CALLBACK_HANDLE NUM_SCOPES
    PropagatingExecutor PropagatingThread RecordFunction RecordFunctionCallback
    RecordFunctionGuard RecordFunctionTLS StepCallbacks ThreadLocalState ThreadLocalStateGuard
    add_global_callback add_thread_local_callback call_end_callbacks_on_future clear_callbacks
    clear_global_callbacks clear_thread_local_callbacks debug_info_get debug_info_peek
    debug_info_pop debug_info_push disable_callback enable_record_function
    get_record_function_tls get_step_callbacks get_step_callbacks_unless_empty has_callbacks
    has_global_callbacks has_thread_local_callbacks is_record_function_enabled propagate
    record_edge_scope_with_debug_handle_and_inputs record_function_enter
    record_function_enter_new record_function_exit record_function_with_inputs
    record_function_with_inputs_outputs record_function_with_scope
    record_function_with_scope_inputs_outputs record_outputs record_torchscript_function
    record_user_scope record_with_scope_debug_handle_and_inputs reenable_callback
    remove_callback set_record_function_seed_for_testing set_record_function_tls
"""
NAMES_OF_LEGACY = """
    ActiveProfilerType CudaRecord CudaStubs EventKind LegacyEvent ProfilerConfig
    ProfilerDisableOptions ProfilerError ProfilerState RecordProfile TLSLegacyProfilerGuard
    ThreadEventLists ThreadEvents TorchRecord add_event_list disable_profiler_legacy
    enable_profiler_legacy mark profiler_config profiler_enabled profiler_type register_cuda_methods
    torch_records write_profiler_events_to_stream
"""
ERRORS = """
    CacheUnsafe CallRefused DebugInfoError GeneratorError InputsError ObserverUnavailable
    OperatorMissingError ProfilerError RangeOver RecfnError RecorderUnavailable
    SamplingProbabilityError SchemaError SettingError TraceError TraceFileError UnknownHandleError
"""
SETTINGS = """
    tracer_provider meter_provider scopes chrome_trace roots_per_second detail span_budget
    ordinary_span_budget trace_span_budget spans_per_second span_names exit_timeout_s record_shapes
    modules python_calls outside sinks span_hook span_exporter enabled buffer_bytes
    export_request_bytes open_range_s
"""
SETTINGS_OF_PROFILES = """
    scopes record_shapes with_flops with_stack profile_memory outside modules python_calls
    span_names max_events activities schedule on_trace_ready with_modules
"""


def test_the_names_that_programs_may_use_are_these() -> None:
    """A name that is added, renamed or taken away is a change for them: here, in the docs, and
    in the changelog.
    """
    assert sorted(otel_recfn.__all__) == NAMES.split()
    assert {*NAMES_OF_OBSERVING.split()} <= {*dir(observing)}
    assert {*NAMES_OF_LEGACY.split()} <= {*dir(legacy)}
    assert {*ERRORS.split()} <= {*dir(errors)}
    assert [each.name for each in fields(Settings)] == SETTINGS.split()
    assert [each.name for each in fields(ProfileSettings)] == SETTINGS_OF_PROFILES.split()


def test_no_module_of_the_package_has_the_name_of_something_public() -> None:
    """Importing a submodule sets it as an attribute of the package, where it would hide the
    public name.
    """
    modules = {module.name for module in pkgutil.iter_modules(otel_recfn.__path__)}
    assert modules.isdisjoint(otel_recfn.__all__)


def test_names_are_found_after_everything_was_imported() -> None:
    program = (
        "import otel_recfn.session.session;"
        "from otel_recfn import *; import otel_recfn;"
        "assert all(name in dir(otel_recfn) for name in otel_recfn.__all__);"
        "assert isinstance(otel_recfn.record_function, type), otel_recfn.record_function"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


@pytest.mark.parametrize("module", ["otel_recfn", "otel_recfn.tracing"])
def test_a_public_module_tells_its_names_before_their_first_use(module: str) -> None:
    """As a prompt's completion asks for them."""
    program = (
        f"import {module} as module; missing = {{*module.__all__}} - {{*dir(module)}}; assert not"
        " missing, missing"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(otel_recfn, "no_such_name")


@pytest.mark.parametrize("name", NAMES_OF_OBSERVING.split())
def test_a_name_that_moved_is_still_found_in_the_package(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"otel_recfn.observing.{name};") as warned:
        found = getattr(otel_recfn, name)
    assert found is getattr(observing, name)
    assert warned[0].filename == __file__
    assert name not in dir(otel_recfn)


def test_observing_has_no_name_that_is_not_listed() -> None:
    found = {
        name
        for name, value in vars(observing).items()
        if name[0] != "_" and not inspect.ismodule(value)
    }
    assert found - {"TracedRange", "trace_instead"} == {*NAMES_OF_OBSERVING.split()}
    assert observing.NUM_SCOPES == len(otel_recfn.RecordScope) == 10


def test_every_error_of_the_package_can_be_imported_from_one_module() -> None:
    for module in pkgutil.walk_packages(otel_recfn.__path__, "otel_recfn."):
        if "__main__" not in module.name and "._" not in module.name:
            importlib.import_module(module.name)
    found = {errors.RecfnError}
    for kind in list(found):
        found |= set(_subclasses(kind))
    public = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    assert {kind.__name__ for kind in found if kind.__module__.startswith("otel_recfn.")} == {
        kind.__name__ for kind in public
    }


def _subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def test_the_module_of_errors_imports_little() -> None:
    program = (
        "import sys; from otel_recfn.errors import SettingError; assert not {'numpy', 'torch'} &"
        " {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
