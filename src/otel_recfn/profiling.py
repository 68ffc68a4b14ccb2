"""The class ``profile``: a capture that is kept in memory, with summaries and exports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from otel_recfn import _native
from otel_recfn.batches.averages import KeyAverages, key_averages
from otel_recfn.batches.call_paths import CallTree
from otel_recfn.batches.call_tree import By, tree_of_rows
from otel_recfn.batches.profiled_events import ProfiledEvent, profiled_events
from otel_recfn.batches.selection import Selection
from otel_recfn.errors import RecfnError, SettingError
from otel_recfn.model.batch import Batch
from otel_recfn.model.events import EventSource, Extra, RecordScope
from otel_recfn.model.python_calls import PythonCalls
from otel_recfn.pytorch import profilers
from otel_recfn.pytorch.called_objects import CalledObject, CalledObjects, captures_of_calls
from otel_recfn.recording.types import PROFILE_BUFFER_BYTES
from otel_recfn.report.page import show_page
from otel_recfn.report.recording import Process, Recording
from otel_recfn.report.report import Report
from otel_recfn.report.rules import Finding, findings
from otel_recfn.report.texts import tree_with_bars
from otel_recfn.session.capture import Capture
from otel_recfn.session.session import process_session
from otel_recfn.settings.table import (
    ProfileSettings,
    log_other_activities,
    refuse_others,
    selected,
    with_frames,
)
from otel_recfn.sinks.chrome.writer import export
from otel_recfn.sinks.in_memory import EventStore

if TYPE_CHECKING:
    from typing_extensions import Self

STOP_SECONDS = 10.0
RECORDED = ("RECORD", "RECORD_AND_SAVE")
"""The actions of a schedule that record."""
_FOLDED = str.maketrans(" ;\t", "___")
"""The characters that frames may not have in flame graph tools' format of stacks, and their substitutes."""


class profile:
    """Records every range of the process from ``start`` to ``stop``: all threads, beside any other capture.

        with profile(record_shapes=True) as prof:
            model(x)
        print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))

    Entered again it begins anew. Ranges that are open at its begin are not in it; those open at its end are partial.

    Args:
        scopes: which ``RecordScope``s: a set, or names with commas (``FUNCTION,USER_SCOPE``); module ranges follow ``modules``
            alone. Default: all.
        record_shapes: shapes and dtypes of operators' inputs. Default: false.
        with_flops: floating point operations of the operators that PyTorch counts. Default: false.
        with_stack: the Python (or TorchScript) call stack of each range but backward ones; in Chrome traces, calls of Python
            and C functions too. Default: false.
        profile_memory: what PyTorch allocates and frees: within operators everywhere, and between them in the thread that
            starts the profile, and in what PyTorch runs for it in other threads. While a torch.profiler is active in a thread,
            PyTorch reports to that alone. Default: false.
        modules: ranges for ``nn.Module`` calls. Default: true.
        python_calls: ranges for calls of Python and C functions: ``True``, or ``PythonCalls(include=..., max_depth=...)`` for
            some of them. Default: false.
        max_events: beyond it the oldest events are dropped, as is what a thread's buffer of 256 MiB has no room for; ``lost``
            counts both. Default: 4000000.
        activities: as of torch.profiler; what a GPU does isn't recorded, which is logged. Default: CPU.
        schedule: which steps are recorded, as ``torch.profiler.schedule(...)`` says; then ``step()`` is to be called after
            each. Default: all.
        on_trace_ready: called with this profile whenever a recording has ended, as
            ``torch.profiler.tensorboard_trace_handler(...)`` is. Default: none.
        with_modules: as ``modules``. Default: false.

    Raises:
        SettingError: a value that isn't allowed.
    """

    def __init__(
        self,
        *,
        scopes: Iterable[RecordScope] | str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        with_stack: bool = False,
        profile_memory: bool = False,
        modules: bool = True,
        python_calls: bool | PythonCalls = False,
        max_events: int = 4_000_000,
        activities: Any = None,
        schedule: Any = None,
        on_trace_ready: Any = None,
        with_modules: bool = False,
        **others: Any,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name not in ("self", "others")}
        refuse_others(others)
        settings = ProfileSettings.resolve(asked)
        self._on_trace_ready = on_trace_ready
        self._schedule = schedule
        self.step_num = 0
        """The number of steps that have ended since the profile began."""
        self._action = "NONE"
        """The schedule's action for the current step."""
        self._open_step: AbstractContextManager[Any] | None = None
        log_other_activities(settings.activities)
        self._selected = selected(settings)
        self._recorded = with_frames(self._selected)
        self._max_events = max_events
        self._store = EventStore(max_events)
        self._capture: Capture | None = None
        self._called: CalledObjects | None = None
        self._started = self._running = False

    def start(self) -> None:
        """Begin to record, anew if it ran before.

        Raises:
            RecfnError: it is running; or a signal handler calls during a start, stop or flush of its thread.
        """
        if self._started:
            raise RecfnError(
                "this profile is running already; stop it first, or make another profile(...) for a nested range"
            )
        self._started = True
        try:
            self.step_num = 0
            self._begin_step(self._action_of(0))
        except BaseException:
            self._started = False
            raise

    def step(self) -> None:
        """Begin the next step, a range ``ProfilerStep#<number>``; with a ``schedule``, recordings begin and end here.

        Raises:
            RecfnError: it isn't running.
        """
        if not self._started:
            raise RecfnError(
                "this profile isn't running, so it has no steps; use it in a `with`, or call start() first"
            )
        self._end_step()
        before, now = self._action, self._action_of(self.step_num + 1)
        self.step_num += 1
        if before == "RECORD_AND_SAVE":
            self._finish_and_call_back()
        elif before == "RECORD" and now not in RECORDED:
            self._finish()
        self._begin_step(now, goes_on=before == "RECORD")

    def _action_of(self, number: int) -> str:
        if self._schedule is None:
            return "RECORD"
        action = self._schedule(number)
        return str(getattr(action, "name", action))

    def _begin_step(self, action: str, *, goes_on: bool = False) -> None:
        self._action = "NONE"  # in case the recording can't begin
        if action in RECORDED and not goes_on:
            self._begin()
        self._action = action
        if action in RECORDED and self._schedule is not None:
            self._open_step = _native.record_function(f"ProfilerStep#{self.step_num}")
            self._open_step.__enter__()

    def _end_step(self) -> None:
        opened, self._open_step = self._open_step, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def _finish_and_call_back(self) -> None:
        self._finish()
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _begin(self) -> None:
        self._store = EventStore(self._max_events)
        self._capture = Capture(self._recorded, [self._store], buffer_bytes=PROFILE_BUFFER_BYTES)
        self._running = True
        try:
            if EventSource.PYTHON_CALL in self._selected.sources:
                self._called = CalledObjects()
                captures_of_calls.append(self._called)
            process_session().start(self._capture)
            if self._selected.extras & Extra.MEMORY:
                profilers.keep_memory(self._capture)
        except BaseException:
            self._finish()
            raise

    def stop(self) -> None:
        """End the recording, which stays readable. Does nothing if none runs.

        Raises:
            RecfnError: a signal handler calls in a start, stop or flush of its thread; it goes on, and can be stopped later.
        """
        self._started = False
        self._end_step()
        before, self._action = self._action, "NONE"
        if before in RECORDED:  # this recording is done, whatever the schedule says of later steps
            self._finish_and_call_back()
        self._finish()

    def _finish(self) -> None:
        if not self._running:
            return
        if self._capture is not None:
            process_session().stop(self._capture, STOP_SECONDS)
            profilers.release_memory(self._capture)
        if self._called in captures_of_calls:
            captures_of_calls.remove(self._called)
        self._running = False

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
        """The rows with their columns as attributes, in start order. While the profile runs: those that have ended so far."""
        return profiled_events(self._rows())

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> KeyAverages:
        """The count, total and self time per name; ``print`` shows it as a table.

        Args:
            group_by_input_shape: whether to group by input shapes, too: needs ``record_shapes``.
            group_by_stack_n: so many innermost lines of the stack to group by, too: needs ``with_stack``.

        Raises:
            SettingError: stacks were not recorded.
        """
        if group_by_stack_n > 0 and not self._selected.extras & Extra.STACK:
            raise SettingError(
                "group_by_stack_n needs stacks; record them with profile(with_stack=True)"
            )
        rows = self._rows()
        found = key_averages(
            rows,
            group_by_input_shape=group_by_input_shape,
            group_by_stack_n=max(group_by_stack_n, 0),
        )
        return KeyAverages(found, self.lost, lambda: self._report(rows).in_notebook())

    def tree(self, by: By = "name") -> CallTree:
        """The count, total and self time per call path. ``print(prof.tree())`` shows where the time went.

        Args:
            by: ``"name"``: a path for each name in each path, whatever thread it ran in; ``"thread"``: in each thread its own,
                where what runs there for another thread is outermost; ``"module"``: modules alone, each with the time that
                forward and backward passes took for it (needs ``modules``).

        Raises:
            SettingError: ``by`` is another word, or modules were not recorded.
        """
        if by == "module" and EventSource.MODULE not in self._selected.sources:
            raise SettingError(
                "by='module' needs calls of modules, which this profile left out; don't set modules=False"
            )
        return tree_of_rows(self._rows(), by)

    def __str__(self) -> str:
        """The findings, and the tree of calls with bars."""
        if self._capture is None:
            return repr(self)
        rows = self._rows()
        return tree_with_bars(
            tree_of_rows(rows), findings([Recording([Process("", rows)])]), self.lost
        )

    def _repr_html_(self) -> str | None:
        """The report as a notebook shows it; None if there are no ranges to show."""
        return None if self._capture is None else self.key_averages()._repr_html_()

    def __repr__(self) -> str:
        if self._capture is None:
            return "<profile that has not begun>"
        return f"<profile of {sum(map(len, self._store.batches())):,} events; print() shows them>"

    def findings(self) -> list[Finding]:
        """The things to look at first: at most five that take the time, the most serious first."""
        return findings([Recording([Process("", self._rows())])])

    def export_chrome_trace(
        self, path: str | os.PathLike[str], *, use_python_export: bool = False
    ) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Args:
            path: ends in ``.json`` or ``.json.gz``; an existing file is replaced when all is written. A new one is for this
                user alone.
            use_python_export: an argument that torch.profiler's handlers pass; it makes no difference here.

        Raises:
            SettingError: the path has another suffix, or the file can't be made.
            OSError: it can't be written to its end; an existing file is as before.
        """
        self._fetch()
        export(self._store.batches(), path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page with a flame graph, a time line and a table, which a browser opens from disk.

        Args:
            path: ends in ``.html``; or ``.md`` or ``.json``: what took the time in words, and the table.

        Raises:
            SettingError: it ends in something else.
            TraceFileError: there are no ranges.
            OSError: the file can't be written.
        """
        self._report(self._rows()).write(path)

    def show(self) -> str:
        """Write the report to a temporary file, open it in a browser where there is a screen, and return its path."""
        return show_page(self._report(self._rows()).html())

    def _report(self, rows: Batch) -> Report:
        lost = ", ".join([f"{name}={count}" for name, count in self.lost.items()])
        notes = [f"Lost, and not in these pictures: {lost}."] if lost else []
        return Report([Process("", rows)], "Profile", notes)

    def modules(self) -> list[CalledObject]:
        """The ``nn.Module``s that were called, with parameters and gradients at the first call. Needs ``python_calls``.

        Modules are in the order of these calls, each without those in it, under the names of their ranges. Parameters
        of classes of your own are left out. The first 10,000 modules or optimizers are listed; ``lost["called_objects"]``
        counts the others.
        """
        self._begun_capture()
        return self._called.modules() if self._called is not None else []

    def optimizers(self) -> list[CalledObject]:
        """The optimizers that made a step, with parameters, gradients and state after the first one. Needs ``python_calls``."""
        self._begun_capture()
        return self._called.optimizers() if self._called is not None else []

    def export_stacks(
        self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total"
    ) -> None:
        """Write stacks with the microseconds that each was innermost for, as flame graph tools read them: needs ``with_stack``.

        Raises:
            SettingError: the metric is another one, or stacks were not recorded.
            OSError: the file can't be written.
        """
        if metric != "self_cpu_time_total":
            raise SettingError(f"metric={metric!r} is not allowed; allowed: 'self_cpu_time_total'")
        if not self._selected.extras & Extra.STACK:
            raise SettingError(
                "export_stacks() needs stacks; record them with profile(with_stack=True)"
            )
        found = [
            (event.stack.translate(_FOLDED).splitlines(), event.self_ns // 1000)
            for event in self.events()
            if event.stack
        ]
        lines = [f"{';'.join(reversed(frames))} {us}\n" for frames, us in found if us]
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(lines)

    def counters(self) -> dict[str, int]:
        """The counts of the ranges, marks and memory reports of this run, and of those that were lost, by cause."""
        return process_session().counters(self._begun_capture())

    @property
    def lost(self) -> dict[str, int]:
        """The counts of what is missing from the profile, by counter; empty if nothing is."""
        lost = process_session().lost(self._begun_capture())
        if self._called is not None and self._called.left_out:
            lost["called_objects"] = self._called.left_out
        return lost

    def _rows(self) -> Batch:
        self._fetch()
        rows = self._store.rows()
        return (
            rows
            if self._recorded == self._selected
            else Selection(self._selected).view(rows, last=True)
        )

    def _fetch(self) -> None:
        """Fetch the rows that were recorded up to now."""
        capture = self._begun_capture()
        if self._running:
            process_session().flush(capture, STOP_SECONDS)

    def _begun_capture(self) -> Capture:
        """The capture that records, or that recorded last.

        Raises:
            RecfnError: it never began.
        """
        if self._capture is None:
            raise RecfnError(
                "this profile has not begun, so it has no events; use it in a `with`, or call start() first"
            )
        return self._capture
