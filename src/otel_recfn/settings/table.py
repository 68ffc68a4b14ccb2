"""Every setting, defined once: name, type, default, allowed values, environment variable, meaning,
and what it selects.

The docstring of ``instrument()`` is made of this table at import. The docstring of ``profile`` and
the table of docs/settings.md are written from it by ``scripts/generate_settings.py``; a test fails
if they are stale.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_recfn.errors import SettingError
from otel_recfn.model.events import EventSource, Extra
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, PROFILE_BUFFER_BYTES
from otel_recfn.settings import values
from otel_recfn.settings.checking import check_keywords, contradiction_in, read_variables
from otel_recfn.settings.setting import field_settings, setting

if TYPE_CHECKING:
    from otel_recfn.model.events import RecordScope
    from otel_recfn.sinks.protocol import Sink

SCOPES: Any = setting(
    None,
    values.SCOPES,
    "the `RecordScope`s to record: a set, or names separated by commas (`FUNCTION,USER_SCOPE`)."
    " Module calls depend on `modules` alone. Without `BACKWARD_FUNCTION` there are no backward"
    " nodes, only `evaluate_function: ...` around them, and no links to forward operators",
    default_in_words="all",
)
MODULES: Any = setting(
    True, values.BOOL, "whether to record `nn.Module` calls", selects=EventSource.MODULE
)
PYTHON_CALLS: Any = setting(
    False,
    values.CALLS,
    "whether to record calls of Python and C functions: `True`, or `PythonCalls(include=...,"
    " max_depth=...)` for some of them",
    selects=EventSource.PYTHON_CALL,
)
OUTSIDE: Any = setting(
    True,
    values.BOOL,
    "whether to sample, 50 times a second, which Python functions run in threads that record"
    " nothing at the moment. Not where `python_calls` shows them exactly",
    selects=Extra.SAMPLES,
)
SPAN_NAMES: Any = setting(
    "short",
    values.SPAN_NAMES,
    "the names of operations in spans and metrics, and in a profile's tables, trees and reports."
    " `short`: a module call by the module's path below the calling module (`attention` below"
    " `layers.3`), and the outermost call by its class (`Transformer`). `torch`: everything as in"
    " torch.profiler (`nn.Module: Attention_3`)",
)
"""Settings of ``instrument()`` and of ``profile(...)``."""


@dataclass(frozen=True)
class Settings:
    """The values of all settings of ``instrument()``."""

    tracer_provider: Any = setting(
        None,
        values.PROVIDER,
        "the provider whose span processors get our spans, and whose sampler decides about traces"
        " that we start",
        default_in_words="the global one, whenever it is set",
        environment=False,
    )
    meter_provider: Any = setting(
        None,
        values.METER_PROVIDER,
        "the provider whose readers get durations and counters",
        default_in_words="the global one, whenever it is set",
        environment=False,
    )
    scopes: frozenset[RecordScope] | None = SCOPES
    chrome_trace: str | None = setting(
        None, values.TRACE_PATH, "the file to write while the program runs, `.json` or `.json.gz`"
    )
    roots_per_second: float | None = setting(
        1.0,
        values.RATE,
        "the maximum number of traces a second that we start because no span of yours is current;"
        " the first 100 are always started. `None`: no limit. Calls that evaluate a model in a"
        " training program have a separate limit of the same number. The operations of a trace that"
        " isn't started have no spans; local files and metrics still have them",
    )
    detail: str = setting(
        "normal",
        values.DETAIL,
        "how many spans are sent: `normal` stands for the defaults of the next four settings, `low`"
        " for a fifth of each, and `all` makes every operation a span",
    )
    span_budget: int | None = setting(
        1000,
        values.BUDGET,
        "the maximum number of spans for a request or step: for what runs below one span of yours,"
        " or in a trace that we start. The longest operations are spans. The others are added to"
        " the sums of the span that encloses them (`recfn.folded.*`), so that sums are complete."
        " `None`: every operation is a span, which is sent when it ends, and no span has"
        " `recfn.unit.*`",
    )
    ordinary_span_budget: int | None = setting(
        50,
        values.BUDGET,
        "the same for a request or step in which nothing fails and which takes as long as usual."
        " `None`: `span_budget` applies",
    )
    trace_span_budget: int | None = setting(
        5000,
        values.BUDGET,
        "the maximum number of spans for a trace, over all its requests and steps in this process;"
        " each of these has at least one span. `None`: no limit",
    )
    spans_per_second: float | None = setting(
        1000.0,
        values.SPAN_RATE,
        "the maximum number of spans a second, over all requests and steps and averaged over 10 s;"
        " each of these has at least one span. `None`: no limit",
    )
    span_names: str = SPAN_NAMES
    exit_timeout_s: float = setting(
        2.0,
        values.DURATION,
        "the number of seconds for which the end of the process waits until our spans are handed"
        " to the span processors, or sent by `span_exporter`, and files are closed, also if the"
        " backend is slow or down. Spans that aren't sent by then are counted as dropped"
        " (`dropped.shutdown`). It doesn't limit what your span processors do when your provider"
        " shuts them down",
    )
    record_shapes: bool = setting(
        False, values.BOOL, "whether to record shapes and dtypes of inputs", selects=Extra.SHAPES
    )
    modules: bool = MODULES
    python_calls: bool | PythonCalls = PYTHON_CALLS
    outside: bool = OUTSIDE
    sinks: tuple[Sink, ...] = setting(
        (),
        values.SINKS,
        "further objects that get what is recorded, such as `InMemorySink()`",
        default_in_words="none",
        environment=False,
    )
    span_hook: Any = setting(
        None,
        values.HOOK,
        "a function that is called as `span_hook(row, attributes)` before the span of an operation"
        " is made. It may change the attributes, and return another name, or `False` to drop the"
        " span",
        default_in_words="none",
        environment=False,
    )
    span_exporter: Any = setting(
        None,
        values.SPAN_EXPORTER,
        "the exporter that sends our spans in place of the provider's span processors: `otlp`,"
        " `otlp-grpc`, `otlp-http`, or an `OTLPSpanExporter` of OpenTelemetry's",
        default_in_words="none",
    )
    enabled: bool = setting(True, values.BOOL, "`False`: records nothing and costs nothing")
    buffer_bytes: int = setting(
        DEFAULT_BUFFER_BYTES,
        values.BUFFER_BYTES,
        "the maximum size of each thread's buffer, which is read every 100 to 250 ms. An operation"
        " that doesn't fit is dropped whole and counted (`dropped.buffer_full`)",
        default_in_words=f"{DEFAULT_BUFFER_BYTES >> 20} MiB",
    )
    export_request_bytes: int = setting(
        7 << 19,
        values.REQUEST_BYTES,
        "the maximum size of a request of `span_exporter` before compression; a larger span is"
        " sent alone",
        default_in_words="3.5 MiB",
    )
    open_range_s: float | None = setting(
        60.0,
        values.SECONDS,
        "the number of seconds after which an operation that is still open is shown before it"
        " ends, so that a hang can be seen; in a Chrome trace after a second. `None`: never",
    )

    @classmethod
    def resolve(
        cls, keywords: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> Settings:
        """Settings from keyword arguments and the environment.

        A keyword counts before a variable, and both before what ``detail`` stands for. A variable
        that isn't allowed is ignored: ``wrong_variables`` has a message for it.

        Raises:
            SettingError: a keyword isn't allowed.
        """
        variables = os.environ if environment is None else environment
        found = read_variables(SETTINGS, variables).values | check_keywords(SETTINGS, keywords)
        if contradiction := contradiction_in(keywords):
            raise SettingError(contradiction.message)
        budgets = values.DETAILS[found.get("detail", "normal")]
        return cls(**{**budgets, **found})


@dataclass(frozen=True)
class ProfileSettings:
    """The values of all settings of ``profile(...)``."""

    scopes: frozenset[RecordScope] | None = SCOPES
    record_shapes: bool = setting(
        False,
        values.BOOL,
        "whether to record shapes and dtypes of operators' inputs",
        selects=Extra.SHAPES,
    )
    with_flops: bool = setting(
        False,
        values.BOOL,
        "whether to record the floating point operations of the operators for which PyTorch counts"
        " them",
        selects=Extra.FLOPS,
    )
    with_stack: bool = setting(
        False,
        values.BOOL,
        "whether to record the Python (or TorchScript) call stack of each range except backward"
        " ones. Chrome traces then show calls of Python and C functions, too",
        selects=Extra.STACK,
    )
    profile_memory: bool = setting(
        False,
        values.BOOL,
        "whether to record what PyTorch allocates and frees: inside operators in every thread, and"
        " between operators in the thread that starts the profile and in what PyTorch runs for it"
        " in other threads. While a torch.profiler is active in a thread, PyTorch reports to that"
        " profiler alone",
        selects=Extra.MEMORY,
    )
    outside: bool = OUTSIDE
    modules: bool = MODULES
    python_calls: bool | PythonCalls = PYTHON_CALLS
    span_names: str = SPAN_NAMES
    max_events: int = setting(
        4_000_000,
        values.EVENTS,
        "the maximum number of events; beyond it the oldest are dropped. Events that don't fit into"
        f" a thread's buffer of {PROFILE_BUFFER_BYTES >> 20} MiB are dropped, too. `lost` counts"
        " both",
    )
    activities: Any = setting(
        None,
        values.ACTIVITIES,
        "as in torch.profiler. Only the CPU is recorded; a warning is logged for others",
        default_in_words="CPU",
    )
    schedule: Any = setting(
        None,
        values.SCHEDULE,
        "a function of a step's number that says whether to record it, such as"
        " `torch.profiler.schedule(...)`; call `step()` after each step",
        default_in_words="all",
    )
    on_trace_ready: Any = setting(
        None,
        values.READY,
        "a function that is called with this profile after each recording, such as"
        " `torch.profiler.tensorboard_trace_handler(...)`",
        default_in_words="none",
    )
    with_modules: bool | None = setting(
        None,
        values.BOOL_OR_NONE,
        "torch.profiler's name for `modules`. If it is given, `modules` is ignored",
    )

    @classmethod
    def resolve(cls, keywords: Mapping[str, Any]) -> ProfileSettings:
        """Settings from keyword arguments.

        Raises:
            SettingError: one isn't allowed.
        """
        found = check_keywords(PROFILE_SETTINGS, keywords)
        if found.get("with_modules") is not None:
            found["modules"] = found["with_modules"]
        return cls(**found)


SETTINGS = field_settings(Settings)
PROFILE_SETTINGS = field_settings(ProfileSettings, environment=False)
