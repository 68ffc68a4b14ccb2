"""Every setting, each in one place: name, type, default, what is allowed, environment variable, meaning, what it selects.

From it comes the docstring of ``instrument()``, and ``scripts/generate_settings.py`` writes that of ``profile`` and the table
of docs/settings.md; a test says when that was forgotten.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from otel_recfn.errors import SettingError
from otel_recfn.model.events import EventSource, Extra, scopes_mask
from otel_recfn.model.python_calls import ALL_CALLS, PythonCalls
from otel_recfn.recording.types import DEFAULT_BUFFER_BYTES, PROFILE_BUFFER_BYTES
from otel_recfn.settings import values
from otel_recfn.settings.values import Kind

if TYPE_CHECKING:
    from otel_recfn.batches.selection import Selected
    from otel_recfn.model.events import RecordScope
    from otel_recfn.sinks.protocol import Sink

log = logging.getLogger("otel_recfn")
T = TypeVar("T")
ENVIRONMENT_PREFIX = "OTEL_RECFN_"


def _setting(default: T, kind: Kind[T], meaning: str, **more: Any) -> T:
    """A field of ``Settings`` or ``ProfileSettings``. ``more`` has further fields of its ``Setting``."""
    return field(default=default, metadata={"kind": kind, "meaning": meaning, **more})


SCOPES: Any = _setting(
    None,
    values.SCOPES,
    "which `RecordScope`s: a set, or names with commas (`FUNCTION,USER_SCOPE`); module ranges follow `modules` alone",
    default_in_words="all",
)
MODULES: Any = _setting(
    True, values.BOOL, "ranges for `nn.Module` calls", selects=EventSource.MODULE
)
PYTHON_CALLS: Any = _setting(
    False,
    values.CALLS,
    "ranges for calls of Python and C functions: `True`, or `PythonCalls(include=..., max_depth=...)` for some of them",
    selects=EventSource.PYTHON_CALL,
)
"""Settings of ``instrument()`` and of ``profile(...)``."""


@dataclass(frozen=True)
class Settings:
    """The values of all settings of ``instrument()``."""

    tracer_provider: Any = _setting(
        None,
        values.PROVIDER,
        "whose span processors get the spans",
        default_in_words="the global one, whenever it is set",
        environment=False,
    )
    meter_provider: Any = _setting(
        None,
        values.METER_PROVIDER,
        "whose readers get durations and counters",
        default_in_words="the global one, whenever it is set",
        environment=False,
    )
    scopes: frozenset[RecordScope] | None = SCOPES
    chrome_trace: str | None = _setting(
        None, values.TRACE_PATH, "a file to write while the program runs, `.json` or `.json.gz`"
    )
    roots_per_second: float | None = _setting(
        1.0,
        values.RATE,
        "traces a second for code outside any span, after the first 100; `None`: all",
    )
    detail: str = _setting(
        "normal",
        values.DETAIL,
        "how many spans: `normal` is what the next four settings are by default, `low` a fifth of that, `all` each operation",
    )
    span_budget: int | None = _setting(
        1000,
        values.BUDGET,
        "spans per request (below one span of yours, or a trace that we start); `None`: every operation is a span, sent when "
        "it ends, without `recfn.unit.*`",
    )
    ordinary_span_budget: int | None = _setting(
        50,
        values.BUDGET,
        "the same for one that neither fails nor takes unusually long; `None`: as others",
    )
    trace_span_budget: int | None = _setting(
        5000, values.BUDGET, "spans per trace; `None`: any number"
    )
    spans_per_second: float | None = _setting(
        1000.0, values.RATE, "the average over 10 s; `None`: any number"
    )
    span_names: str = _setting(
        "short",
        values.SPAN_NAMES,
        "`short`: spans of module calls are named by the module's path (`layers.3.attention`), or its class; `torch`: all as "
        "in torch.profiler (`nn.Module: Attention_3`)",
    )
    exit_timeout_s: float = _setting(
        2.0, values.DURATION, "how long the end of the process waits for a backend"
    )
    record_shapes: bool = _setting(
        False, values.BOOL, "shapes and dtypes of inputs too", selects=Extra.SHAPES
    )
    modules: bool = MODULES
    python_calls: bool | PythonCalls = PYTHON_CALLS
    sinks: tuple[Sink, ...] = _setting(
        (),
        values.SINKS,
        "further sinks, such as `InMemorySink()`",
        default_in_words="none",
        environment=False,
    )
    span_hook: Any = _setting(
        None,
        values.HOOK,
        "called as `span_hook(row, attributes)` before a span is made: may change the attributes, return another name, or "
        "`False` to drop it",
        default_in_words="none",
        environment=False,
    )
    span_exporter: Any = _setting(
        None,
        values.SPAN_EXPORTER,
        "sends spans in place of the provider's span processors: `otlp`, `otlp-grpc`, `otlp-http`, or an official exporter",
        default_in_words="none",
    )
    enabled: bool = _setting(True, values.BOOL, "false: registers and costs nothing")
    buffer_bytes: int = _setting(
        DEFAULT_BUFFER_BYTES,
        values.BUFFER_BYTES,
        "how much a thread may record before it is read, every 100 to 250 ms; what doesn't fit is dropped and counted",
        default_in_words=f"{DEFAULT_BUFFER_BYTES >> 20} MiB",
    )
    export_request_bytes: int = _setting(
        7 << 19,
        values.REQUEST_BYTES,
        "how large a request of `span_exporter` may be before compression; a larger span is one of its own",
        default_in_words="3.5 MiB",
    )
    open_range_s: float | None = _setting(
        60.0,
        values.SECONDS,
        "what is open for so many seconds is shown before it ends; `None`: never",
    )

    @classmethod
    def resolve(
        cls, keywords: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> Settings:
        """Settings from keyword arguments and the environment; a SettingError where one of either isn't allowed."""
        given = _from_environment(os.environ if environment is None else environment) | _checked(
            SETTINGS, keywords
        )
        return cls(**{**values.DETAILS[given.get("detail", "normal")], **given})


@dataclass(frozen=True)
class ProfileSettings:
    """The values of all settings of ``profile(...)``."""

    scopes: frozenset[RecordScope] | None = SCOPES
    record_shapes: bool = _setting(
        False, values.BOOL, "shapes and dtypes of operators' inputs", selects=Extra.SHAPES
    )
    with_flops: bool = _setting(
        False,
        values.BOOL,
        "floating point operations of the operators that PyTorch counts",
        selects=Extra.FLOPS,
    )
    with_stack: bool = _setting(
        False,
        values.BOOL,
        "the Python (or TorchScript) call stack of each range but backward ones; in Chrome traces, calls of Python and C "
        "functions too",
        selects=Extra.STACK,
    )
    profile_memory: bool = _setting(
        False,
        values.BOOL,
        "what PyTorch allocates and frees: within operators everywhere, and between them in the thread that starts the "
        "profile, and in what PyTorch runs for it in other threads. While a torch.profiler is active in a thread, PyTorch "
        "reports to that alone",
        selects=Extra.MEMORY,
    )
    modules: bool = MODULES
    python_calls: bool | PythonCalls = PYTHON_CALLS
    max_events: int = _setting(
        4_000_000,
        values.EVENTS,
        f"beyond it the oldest events are dropped, as is what a thread's buffer of {PROFILE_BUFFER_BYTES >> 20} MiB has no "
        "room for; `lost` counts both",
    )
    activities: Any = _setting(
        None,
        values.ACTIVITIES,
        "as of torch.profiler; what a GPU does isn't recorded, which is logged",
        default_in_words="CPU",
    )
    schedule: Any = _setting(
        None,
        values.SCHEDULE,
        "which steps are recorded, as `torch.profiler.schedule(...)` says; then `step()` is to be called after each",
        default_in_words="all",
    )
    on_trace_ready: Any = _setting(
        None,
        values.READY,
        "called with this profile whenever a recording has ended, as `torch.profiler.tensorboard_trace_handler(...)` is",
        default_in_words="none",
    )
    with_modules: bool = _setting(False, values.BOOL, "as `modules`", selects=EventSource.MODULE)

    @classmethod
    def resolve(cls, keywords: Mapping[str, Any]) -> ProfileSettings:
        """Settings from keyword arguments; a SettingError where one isn't allowed."""
        return cls(**_checked(PROFILE_SETTINGS, keywords))


class Setting(NamedTuple):
    """A setting: its name, its values, and how it is explained."""

    name: str
    default: Any
    """The value where neither a keyword nor the environment gives one."""
    kind: Kind[Any]
    meaning: str
    """The explanation for users, as Markdown."""
    default_in_words: str = ""
    environment: bool = True
    """Whether ``OTEL_RECFN_<NAME>`` sets it too."""
    selects: Extra | EventSource | None = None
    """The extra or the source that is recorded if it is true; see ``selected``."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty if there is none."""
        return ENVIRONMENT_PREFIX + self.name.upper() if self.environment else ""


def _settings_of(table: type, **also: Any) -> tuple[Setting, ...]:
    more = [
        {"default_in_words": str(each.default).lower(), **each.metadata, **also}
        for each in fields(table)
    ]
    return tuple(
        [
            Setting(each.name, each.default, **known)
            for each, known in zip(fields(table), more, strict=True)
        ]
    )


SETTINGS = _settings_of(Settings)
PROFILE_SETTINGS = _settings_of(ProfileSettings, environment=False)


def with_arguments(docstring: str | None, settings: Iterable[Setting]) -> str | None:
    """A docstring, for ``help()``, with a line for each setting in place of that for ``kwargs``."""
    lines = [f"{each.name}: {each.meaning}. Default: {each.default_in_words}." for each in settings]
    return docstring and docstring.replace(
        "kwargs: the settings of docs/settings.md.", ("\n" + " " * 12).join(lines)
    )


def _checked(settings: tuple[Setting, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    by_name = {setting.name: setting for setting in settings}
    unknown = sorted(set(keywords) - set(by_name))
    if unknown:
        raise SettingError(f"{', '.join(unknown)}: no such setting; allowed: {', '.join(by_name)}")
    return {name: by_name[name].kind.checked(name, value) for name, value in keywords.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for setting in SETTINGS:
        text = environment.get(setting.variable, "").strip()
        if text:
            found[setting.name] = setting.kind.parsed(setting.variable, text)
    return found


def sdk_is_disabled() -> bool:
    """Whether the environment disables OpenTelemetry's providers."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A message for each variable that looks like one of ours and is none, with the one that was probably meant."""
    known = [*[each.variable for each in SETTINGS if each.variable], *PROCESS_VARIABLES]
    found = []
    for variable in sorted(
        [name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known]
    ):
        import difflib

        names = [each.removeprefix(ENVIRONMENT_PREFIX) for each in known]
        nearest = difflib.get_close_matches(variable.removeprefix(ENVIRONMENT_PREFIX), names, 1)
        way_out = (
            f"did you mean {ENVIRONMENT_PREFIX}{nearest[0]}?"
            if nearest
            else f"there are {', '.join(known)}"
        )
        found.append(f"{variable} is not a variable of otel-recfn; {way_out}")
    return found


PROCESS_VARIABLES = {
    ENVIRONMENT_PREFIX + "CACHE_DIR": ("per user", "where the observer's builds are kept")
}
"""The default and the meaning of variables for the whole process, which no ``instrument()`` can set."""

TORCH_PROFILER_ONLY = {
    "acc_events",
    "custom_trace_id_callback",
    "execution_trace_observer",
    "experimental_config",
    "post_processing_timeout_s",
    "use_cuda",
}
"""Keywords of torch.profiler.profile that ``profile(...)`` refuses, unless they ask for nothing."""


def log_other_activities(activities: frozenset[str] | None) -> None:
    """Log, once a profile, that activities other than the CPU's aren't recorded."""
    if others := (activities or frozenset()) - {"CPU"}:
        log.warning(
            "profile() records the CPU alone, not %s; use torch.profiler beside it",
            ", ".join(sorted(others)),
        )


def refuse_others(keywords: dict[str, Any]) -> None:
    """Refuse, by a SettingError, keywords that ``profile(...)`` has no parameter for."""
    for name, value in keywords.items():
        if name not in TORCH_PROFILER_ONLY:
            raise SettingError(
                f"profile() has no {name}; it has {', '.join([each.name for each in PROFILE_SETTINGS])}"
            )
        if value:
            raise SettingError(
                f"{name}={value!r} is for torch.profiler alone; leave it out, or use torch.profiler"
            )


def selected(settings: Settings | ProfileSettings) -> Selected:
    """The scopes, extras and sources that ``instrument()`` or ``profile(...)`` was asked for."""
    from otel_recfn.batches.selection import (
        RECORD_FUNCTIONS,
        Selected,
    )  # it imports numpy, and a program may record nothing

    wanted = [
        each.metadata.get("selects") for each in fields(settings) if getattr(settings, each.name)
    ]
    extras = Extra(sum({extra for extra in wanted if isinstance(extra, Extra)}))
    sources = RECORD_FUNCTIONS | {source for source in wanted if isinstance(source, EventSource)}
    calls = settings.python_calls if isinstance(settings.python_calls, PythonCalls) else ALL_CALLS
    return Selected(scopes_mask(settings.scopes), extras, sources, calls=calls)


def with_frames(wanted: Selected) -> Selected:
    """The selection to record for it: a Chrome trace with stacks shows calls of Python functions, as torch.profiler's does."""
    return (
        replace(wanted, sources=wanted.sources | {EventSource.PYTHON_CALL})
        if wanted.extras & Extra.STACK
        else wanted
    )
