"""The class ``profile``: a recording that is kept in memory, with summaries and exports.

    steps        StepSchedule says which are recorded    start() ─► step() ─► ... ─► stop()
    recording    KeptRecording: a capture and its store  begin() ───────────► finish()
    results      of the rows that were fetched           events, sums, trees, reports, files

Users import the class from ``otel_recfn``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from otel_recfn import _native
from otel_recfn.batches.averages import key_averages
from otel_recfn.batches.build_tree import By, build_tree
from otel_recfn.batches.call_tree import CallTree
from otel_recfn.batches.key_average import KeyAverages
from otel_recfn.batches.profiled_event import ProfiledEvent
from otel_recfn.batches.profiled_events import event_finder, profiled_events
from otel_recfn.batches.sampled_functions import SampledFunction, sampled_functions
from otel_recfn.batches.span_names import with_module_names
from otel_recfn.batches.stack_lines import STACK_METRICS, stack_lines
from otel_recfn.batches.text_tables import lost_text
from otel_recfn.batches.wall import Wall, wall_time
from otel_recfn.errors import RecfnError, SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra, RecordScope, whole_number
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.pytorch.called_objects import CalledObject
from otel_recfn.report.finding import Finding
from otel_recfn.report.findings import findings
from otel_recfn.report.page import show_page
from otel_recfn.report.process import Process
from otel_recfn.report.recording import Recording
from otel_recfn.report.report import Report
from otel_recfn.report.terminal import tree_with_bars
from otel_recfn.session.capture import Capture
from otel_recfn.session.kept_recording import KeptRecording
from otel_recfn.session.session import process_session
from otel_recfn.session.step_schedule import RECORD, RECORD_AND_SAVE, RECORDED, StepSchedule
from otel_recfn.settings.selecting import select_by_settings, with_frames
from otel_recfn.settings.table import ProfileSettings
from otel_recfn.settings.torch_keywords import log_other_activities, refuse_others
from otel_recfn.sinks.chrome.export import export
from otel_recfn.support.files import for_this_user
from otel_recfn.support.paths import file_path

if TYPE_CHECKING:
    from typing_extensions import Self


class profile:
    """A recording of all ranges of the process, in every thread, from ``start`` to ``stop``.

        with profile(record_shapes=True) as prof:
            model(x)
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))

    Any number of profiles may run at once, also beside ``instrument()``. A profile that is entered
    again starts a new recording. Ranges that were open when it began are not in it; ranges that are
    open when it ends are marked as partial.

    Args:
        scopes: the ``RecordScope``s to record: a set, or names separated by commas
            (``FUNCTION,USER_SCOPE``). Module calls depend on ``modules`` alone. Without
            ``BACKWARD_FUNCTION`` there are no backward nodes, only ``evaluate_function: ...``
            around them, and no links to forward operators. Default: all.
        record_shapes: whether to record shapes and dtypes of operators' inputs. Default: false.
        with_flops: whether to record the floating point operations of the operators for which
            PyTorch counts them. Default: false.
        with_stack: whether to record the Python (or TorchScript) call stack of each range except
            backward ones. Chrome traces then show calls of Python and C functions, too. Default:
            false.
        profile_memory: whether to record what PyTorch allocates and frees: inside operators in
            every thread, and between operators in the thread that starts the profile and in what
            PyTorch runs for it in other threads. While a torch.profiler is active in a thread,
            PyTorch reports to that profiler alone. Default: false.
        outside: whether to sample, 50 times a second, which Python functions run in threads that
            record nothing at the moment. Not where ``python_calls`` shows them exactly. Default:
            true.
        modules: whether to record ``nn.Module`` calls. Default: true.
        python_calls: whether to record calls of Python and C functions: ``True``, or
            ``PythonCalls(include=..., max_depth=...)`` for some of them. Default: false.
        span_names: the names of operations in spans and metrics, and in a profile's tables, trees
            and reports. ``short``: a module call by the module's path below the calling module
            (``attention`` below ``layers.3``), and the outermost call by its class
            (``Transformer``). ``torch``: everything as in torch.profiler (``nn.Module:
            Attention_3``). Default: short.
        max_events: the maximum number of events; beyond it the oldest are dropped. Events that
            don't fit into a thread's buffer of 256 MiB are dropped, too. ``lost`` counts both.
            Default: 4000000.
        activities: as in torch.profiler. Only the CPU is recorded; a warning is logged for others.
            Default: CPU.
        schedule: a function of a step's number that says whether to record it, such as
            ``torch.profiler.schedule(...)``; call ``step()`` after each step. Default: all.
        on_trace_ready: a function that is called with this profile after each recording, such as
            ``torch.profiler.tensorboard_trace_handler(...)``. Default: none.
        with_modules: torch.profiler's name for ``modules``. If it is given, ``modules`` is ignored.
            Default: none.

    Raises:
        SettingError: a value isn't allowed, or a keyword is unknown.
    """

    def __init__(
        self,
        *,
        scopes: Iterable[RecordScope] | str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        with_stack: bool = False,
        profile_memory: bool = False,
        outside: bool = True,
        modules: bool = True,
        python_calls: bool | PythonCalls = False,
        span_names: str = "short",
        max_events: int = 4_000_000,
        activities: Any = None,
        schedule: Any = None,
        on_trace_ready: Any = None,
        with_modules: bool | None = None,
        **others: Any,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name not in ("self", "others")}
        refuse_others(others)
        settings = ProfileSettings.resolve(asked)
        self._on_trace_ready = on_trace_ready
        self._schedule = StepSchedule(schedule)
        self.step_num = 0
        """The number of steps that have ended since the profile began."""
        self._action = ""
        """The schedule's action for the current step; empty if none has begun."""
        self._open_step: AbstractContextManager[Any] | None = None
        log_other_activities(settings.activities)
        self._has_torch_names = settings.span_names == "torch"
        self._selected = select_by_settings(settings)
        self._recording = KeptRecording(with_frames(self._selected), self._selected, max_events)
        self._started = False

    def start(self) -> None:
        """Start a new recording.

        Raises:
            RecfnError: the profile is running already, or a signal handler called this while a
                start, stop or flush ran in its thread.
        """
        if self._started:
            raise RecfnError(
                "this profile is running already; stop it first, or make another profile(...) for a"
                " nested range"
            )
        self._started = True
        try:
            self.step_num = 0
            self._begin_step(self._schedule.action(0))
        except BaseException:
            self._started = False
            raise

    def step(self) -> None:
        """Begin the next step.

        With a ``schedule``, a recorded step is a range ``ProfilerStep#<number>``, and recordings
        begin and end here.

        Raises:
            RecfnError: the profile isn't running.
        """
        if not self._started:
            raise RecfnError(
                "this profile isn't running, so it has no steps; use it in a `with`, or call"
                " start() first"
            )
        self._end_step()
        before = self._action
        now = self._schedule.action(self.step_num + 1)
        self.step_num += 1
        if before == RECORD_AND_SAVE:
            self._finish_and_call_back()
        elif before == RECORD and now not in RECORDED:
            self._recording.finish()
        self._begin_step(now, continues=before == RECORD)

    def _begin_step(self, action: str, *, continues: bool = False) -> None:
        self._action = "NONE"  # in case the recording can't begin
        if action in RECORDED and not continues:
            self._recording.begin()
        self._action = action
        if action in RECORDED and self._schedule.has_steps:
            self._open_step = _native.record_function(f"ProfilerStep#{self.step_num}")
            self._open_step.__enter__()

    def _end_step(self) -> None:
        opened, self._open_step = self._open_step, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def _finish_and_call_back(self) -> None:
        self._recording.finish()
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def stop(self) -> None:
        """End the recording, which stays readable. Does nothing if the profile isn't running.

        Raises:
            RecfnError: a signal handler called this while a start, stop or flush ran in its thread.
                The recording continues and can be stopped later.
        """
        self._started = False
        self._end_step()
        before = self._action
        self._action = "NONE" if before else ""
        if before in RECORDED:  # this recording is done, whatever the schedule says of later steps
            self._finish_and_call_back()
        self._recording.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def events(self) -> list[ProfiledEvent]:
        """The recorded ranges, marks and memory reports, by start time.

        While the profile runs, these are the ones that have ended so far.
        """
        return profiled_events(self._rows())

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> KeyAverages:
        """The count, total and self time per name; ``print`` shows it as a table.

        Args:
            group_by_input_shape: whether to group by input shapes, too: needs ``record_shapes``.
            group_by_stack_n: the number of innermost lines of the stack to group by, too: needs
                ``with_stack``.

        Raises:
            SettingError: stacks were not recorded, or ``group_by_stack_n`` is not a number of
                lines.
        """
        group_by_stack_n = max(
            0, whole_number(group_by_stack_n, "group_by_stack_n", range(-1, 1 << 31))
        )
        if group_by_stack_n and not self._selected.extras & Extra.STACK:
            raise SettingError(
                "group_by_stack_n needs stacks; record them with profile(with_stack=True)"
            )
        rows = self._rows()
        found = key_averages(
            self._named(rows),
            group_by_input_shape=group_by_input_shape,
            group_by_stack_n=group_by_stack_n,
            find_event=event_finder(rows),
        )
        return KeyAverages(
            found, self.lost, lambda: self._report(rows).in_notebook(), self._wall(rows)
        )

    def tree(self, by: By = "name") -> CallTree:
        """The count, total and self time per call path.

        ``print(prof.tree())`` shows where the time went.

        Args:
            by: ``"name"``: one path for each sequence of names, over all threads. ``"thread"``: the
                same for each thread; work for another thread is outermost there. ``"module"``: only
                modules, each with the time of its forward and backward passes (needs ``modules``).

        Raises:
            SettingError: ``by`` is another word, or modules were not recorded.
        """
        if by == "module" and EventSource.MODULE not in self._selected.sources:
            raise SettingError(
                "by='module' needs calls of modules, which this profile left out; drop"
                " modules=False or with_modules=False"
            )
        rows = self._rows()
        named = rows if by == "module" else self._named(rows)
        return build_tree(named, by, self.lost, self._wall(rows))

    def __str__(self) -> str:
        """The wall time, the findings, and the tree of calls with bars."""
        if self._recording.capture is None:
            return repr(self)
        rows = self._rows()
        wall = self._wall(rows)
        found = findings([Recording([self._process(rows)])])
        tree = build_tree(self._named(rows), wall=wall)
        return tree_with_bars(tree, found, self.lost, wall.sentences())

    def _repr_html_(self) -> str | None:
        """The report for a notebook; None if the profile recorded nothing."""
        return None if self._recording.capture is None else self.key_averages()._repr_html_()

    def __repr__(self) -> str:
        if self._recording.capture is None:
            state = "recorded no step" if self._action else "has not begun"
            return f"<profile that {state}>"
        lost = f"; lost: {lost_text(self.lost)}" if self.lost else ""
        count = sum(map(len, self._recording.store.batches()))
        return f"<profile of {count:,} events{lost}; print() shows them>"

    def outside(self) -> list[SampledFunction]:
        """The Python functions that threads ran while they recorded nothing, the longest first.

        They are found by samples, 50 a second, so their times are estimates. None of what ran in
        the first 20 ms is certain to be among them, and nothing of threads that have recorded no
        range since the profile began.
        """
        self._begun_capture()
        self._recording.fetch()
        return sampled_functions(self._recording.store.samples())

    def findings(self) -> list[Finding]:
        """At most five things that take the time, the most serious first."""
        return findings([Recording([self._process(self._rows())])])

    def export_chrome_trace(
        self, path: str | os.PathLike[str], *, use_python_export: bool = False
    ) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Args:
            path: ends in ``.json`` or ``.json.gz``. An existing file is replaced when the new one
                is complete. Only this user can read a new file.
            use_python_export: an argument that torch.profiler's handlers pass; it has no effect
                here.

        Raises:
            SettingError: the path has another suffix, or the file can't be created.
            OSError: the file can't be written completely; an existing file is unchanged.
        """
        self._begun_capture()
        self._recording.fetch()
        lost = sum(count for name, count in self.lost.items() if "dropped." in name)
        store = self._recording.store
        block = self._recording.block
        export(store.batches(), path, lost, store.spans(), store.samples(), block)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with a flame graph, a time line and a table, which a browser opens from
        disk.

        Args:
            path: ends in ``.html``, or in ``.md`` or ``.json`` for the findings and the table as
                text. Only this user can read a new file.

        Raises:
            SettingError: the path has another suffix.
            TraceFileError: there are no ranges.
            OSError: the file can't be written.
        """
        self._report(self._rows()).write(path)

    def show(self) -> str:
        """Write the report to a temporary file, open it in a browser if there is a screen, and
        return its path.
        """
        return show_page(self._report(self._rows()).html())

    def _report(self, rows: Batch) -> Report:
        lost = self.lost
        notes = [f"Lost, and not in these pictures: {lost_text(lost)}."] if lost else []
        return Report([self._process(rows)], "Profile", notes)

    def _process(self, rows: Batch) -> Process:
        samples = self._recording.store.samples()
        return Process("", self._named(rows), block=self._recording.block, samples=samples)

    def _named(self, rows: Batch) -> Batch:
        """The rows with the names that tables, trees and reports have."""
        return with_module_names(rows, torch_names=self._has_torch_names)

    def _wall(self, rows: Batch) -> Wall:
        is_complete = not any("dropped." in name for name in self.lost)
        return wall_time(
            rows,
            self._recording.block,
            is_complete=is_complete,
            samples=self._recording.store.samples(),
        )

    def modules(self) -> list[CalledObject]:
        """The ``nn.Module``s that were called, with parameters and gradients at the first call.

        Empty without ``python_calls``, or if ``include`` leaves out PyTorch's own files. Modules
        are in the order of their first calls and have the names of their ranges; a module's entry
        doesn't contain those of its submodules. Parameters of classes of your own are left out. The
        first 10,000 modules or optimizers are listed; ``lost["called_objects"]`` counts the others.
        """
        self._begun_capture()
        called = self._recording.called
        return called.modules() if called is not None else []

    def optimizers(self) -> list[CalledObject]:
        """The optimizers that made a step, with parameters, gradients and state after the first
        step.

        Empty in the same cases as ``modules``.
        """
        self._begun_capture()
        called = self._recording.called
        return called.optimizers() if called is not None else []

    def export_stacks(
        self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total"
    ) -> None:
        """Write each stack and the microseconds that were spent in its innermost frame, in the
        format of flame graph tools: needs ``with_stack``.

        Args:
            path: of the file. Only this user can read a new file.
            metric: one of torch.profiler's. ``self_cpu_time_total``, or a device's, such as
                ``self_cuda_time_total``: then the file is empty, because no device times are
                recorded.

        Raises:
            SettingError: the metric is another one, or stacks were not recorded.
            OSError: the file can't be written.
        """
        if metric not in STACK_METRICS:
            raise SettingError(
                f"metric={metric!r} is not allowed; allowed: {', '.join(STACK_METRICS)}"
            )
        if not self._selected.extras & Extra.STACK:
            raise SettingError(
                "export_stacks() needs stacks; record them with profile(with_stack=True)"
            )
        lines = stack_lines(self.events()) if metric == STACK_METRICS[0] else []
        with open(file_path(path), "w", encoding="utf-8", opener=for_this_user) as file:
            file.writelines(lines)

    def counters(self) -> dict[str, int]:
        """The number of ranges, marks and memory reports that were recorded, and the number of
        lost ones by cause.
        """
        return process_session().counters(self._begun_capture())

    @property
    def lost(self) -> dict[str, int]:
        """The number of events that are missing from the profile, by counter; empty if none is."""
        lost = process_session().lost(self._begun_capture())
        called = self._recording.called
        if called is not None and called.left_out:
            lost["called_objects"] = called.left_out
        return lost

    def _rows(self) -> Batch:
        """The rows that were recorded up to now."""
        self._begun_capture()
        self._recording.fetch()
        return self._recording.rows()

    def _begun_capture(self) -> Capture:
        """The capture that records, or that recorded last.

        Raises:
            RecfnError: it never began.
        """
        if self._recording.capture is not None:
            return self._recording.capture
        if not self._action:
            way_out = "use it in a `with`, or call start() first"
            raise RecfnError(f"this profile has not begun, so it has no events; {way_out}")
        first = self._schedule.next_recorded(self.step_num)
        waits = "records none" if first is None else f"waits for {first:,}"
        raise RecfnError(
            f"this profile recorded no step: {self.step_num:,} ended, and its schedule {waits}; "
            "take more steps, with step() after each, or let schedule() wait and warm up for fewer"
        )
