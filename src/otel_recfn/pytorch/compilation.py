"""Ranges of ``torch.compile``'s compilations: the function, the reason, and the time of each phase.

    a compiled function is called, and no guards hold
      convert_frame._compile ──► torch.compile: Net         its end has the id, reason, graph breaks
                                                            and caches
        dynamo_timed(key) ─────► <key> (dynamo_timed)       torch.profiler's name for it,
                                                            if model/phases.py has words for it
          operators ───────────► EventFlag.IN_COMPILATION   by the drain: none is a span of its own
    the first backward pass through it
      dynamo_timed(BACKWARD) ──► torch.compile: backward

PyTorch looks these functions up by their names whenever it compiles, and finds ours: if nothing is
compiled, nothing is done. PyTorchs before 2.13 may announce phases to every observer themselves, as
all do while torch.profiler runs.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import CodeType
from typing import Any

from otel_recfn import _native
from otel_recfn.model.events import EventSource, RecordScope
from otel_recfn.model.phases import SUFFIX, phase_words
from otel_recfn.pytorch import details
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.code_names import code_text, python_call_name
from otel_recfn.support.exceptions import failure
from otel_recfn.support.foreign import WrappedFunction

SCOPE = int(RecordScope.USER_SCOPE)
SOURCE = int(EventSource.COMPILATION)
FRAME = f"_compile.compile_inner{SUFFIX}"
BACKWARD = f"backward._backward_impl{SUFFIX}"
"""The phases that cover a whole compilation."""
POOLED = f"compile_file{SUFFIX}"
"""The C++ compiler.

Inductor's threads run it, too, where no range is around it: the thread that waits for them has a
phase.
"""
CACHES = {"aot_autograd": "autograd_cache", "inductor": "fxgraph_cache"}
"""PyTorch's counters of caches, and the beginnings of their keys; ``_hit``, ``_miss`` or
``_bypass`` follows.
"""
MAX_BREAKS, MAX_CHARACTERS = 16, 500
"""The most graph breaks that a compilation has the reasons of, and the length of a reason."""
EXPLAINED = "Explanation: "

Counts = dict[str, Counter[str]]
Enters = Callable[[str], AbstractContextManager[Any]]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Compilation] = []
        """The open compilations of the thread, the innermost last."""


class Compilations(Source):
    """A source that opens a range for each compilation and each of its phases."""

    name = "compilation"
    announces: EventSource | None = EventSource.COMPILATION
    needs: str | None = details.PYTHON["compile_frame"].location[0]

    def __init__(self) -> None:
        self._active = False
        self._put_back: dict[str, Callable[[], bool]] = {}
        """The functions that put back what ours replaced, by detail."""
        self._reasons: WrappedFunction | None = None
        self._thread = _Thread()

    def enable(self, _wanted: Wanted) -> None:
        """Put our functions in the place of PyTorch's, unless they are there."""
        if self._active:
            return
        self._active = True
        _native.set_frame_observer(details.find("frame_observer"))
        for detail, ours in (("compile_frame", self._frames), ("compile_phase", self._phases)):
            if detail not in self._put_back and (theirs := details.find(detail)) is not None:
                self._put_back[detail] = _replace(detail, ours(theirs))
        reasons = details.find("recompile_reasons")
        if reasons is not None:
            self._reasons = WrappedFunction(
                sys.modules[self.needs or ""], reasons.__name__, self._note_reasons
            )
            self._reasons.install()

    def disable(self) -> None:
        """Put PyTorch's back; if somebody has wrapped ours, they only pass calls on."""
        self._active = False
        self._put_back = {
            detail: put_back for detail, put_back in self._put_back.items() if not put_back()
        }
        if self._reasons is not None:
            self._reasons.remove()
            self._reasons = None

    def _frames(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        parameters = getattr(getattr(inspect.unwrap(theirs), "__code__", None), "co_varnames", ())

        def otel_recfn_compile(code: CodeType, *arguments: Any, **options: Any) -> Any:
            if not (self._active and _native.recording()):
                return theirs(code, *arguments, **options)
            if "skip" in options:  # how many frames PyTorch leaves out of the stack that it logs
                options["skip"] += 1
            compile_options = dict(zip(parameters[1:], arguments, strict=False)) | options
            with Compilation(self._thread.open, code, compile_options):
                return theirs(code, *arguments, **options)

        return otel_recfn_compile

    def _phases(self, theirs: Enters) -> Enters:
        def otel_recfn_phase(name: str) -> AbstractContextManager[Any]:
            if not (self._active and _native.recording()):
                return theirs(name)
            if name == BACKWARD:
                return self._backward(theirs)
            is_known = name == FRAME if self._thread.open else name == POOLED
            is_displayed = not is_known and phase_words(name.removesuffix(SUFFIX))
            return (
                _Phase(name) if is_displayed and not details.find("profiler_runs") else theirs(name)
            )

        return otel_recfn_phase

    @contextmanager
    def _backward(self, theirs: Enters) -> Iterator[None]:
        current_id = details.find("compile_id") or bool
        with Compilation(self._thread.open, None, {"compile_id": current_id()}), theirs(BACKWARD):
            yield

    def _note_reasons(self, reasons: Any, *_arguments: Any, **_options: Any) -> Any:
        if self._thread.open:
            self._thread.open[-1].reasons = [str(reason) for reason in reasons]
        return reasons


class Compilation(AbstractContextManager[None]):
    """A compilation: a range from enter to exit, with the facts that become known meanwhile.

    Args:
        open_compilations: those of the thread.
        code: the function's; None for a backward graph.
        compile_options: the arguments of PyTorch's compiler of functions, by name.
    """

    def __init__(
        self,
        open_compilations: list[Compilation],
        code: CodeType | None,
        compile_options: Mapping[str, Any],
    ) -> None:
        self.reasons: list[str] = []
        """The guards of earlier compilations that failed."""
        self._open_compilations = open_compilations
        self._before = _read_counts()
        self._id = str(compile_options.get("compile_id") or "")
        self._is_whole = bool(compile_options.get("one_graph"))
        name, text = _function(code, compile_options) if code is not None else ("backward", "")
        self._event_id = _native.begin(f"torch.compile: {name}", SCOPE, SOURCE, code=text)

    def __enter__(self) -> None:
        self._open_compilations.append(self)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._open_compilations.remove(self)
        attributes = self._attributes()
        if (
            error is not None
            and not self._is_whole
            and isinstance(error, details.find("graph_break") or ())
        ):
            attributes["recfn.compile.fallback"] = _short_reason(error)
            error = None
        text, stacktrace = failure(error)
        _native.end(self._event_id, text, stacktrace=stacktrace, attributes=json.dumps(attributes))

    def _attributes(self) -> dict[str, Any]:
        reason = "; ".join(self.reasons)[: 2 * MAX_CHARACTERS]
        found: dict[str, Any] = {"recfn.compile.id": self._id, "recfn.compile.reason": reason}
        since = {group: counts - self._before[group] for group, counts in _read_counts().items()}
        found["recfn.compile.graph_breaks"] = [
            _short_reason(reason) for reason in since["graph_break"]
        ][:MAX_BREAKS]
        for group, prefix in CACHES.items():
            outcomes = [
                each for each in ("miss", "bypass", "hit") if since[group][f"{prefix}_{each}"]
            ]
            found[f"recfn.compile.cache.{group}"] = "".join(outcomes[:1])
        return {name: value for name, value in found.items() if value}


class _Phase(AbstractContextManager[None]):
    """A phase of a compilation: a range from enter to exit, even if PyTorch leaves it by an
    exception to begin again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._event_id = _native.begin(name, SCOPE, SOURCE)

    def __exit__(self, *_error: object) -> None:
        _native.end(
            self._event_id,
            attributes=json.dumps({"recfn.compile.phase": self._name.removesuffix(SUFFIX)}),
        )


def _read_counts() -> Counts:
    """PyTorch's current counters.

    One thread at a time compiles functions, but several may compile backward passes.
    """
    counters = details.find("compile_counters") or {}
    groups = ("graph_break", *CACHES)
    try:
        return {group: Counter(counters.get(group)) for group in groups}
    except RuntimeError:  # another thread counts
        return {group: Counter() for group in groups}


def _short_reason(reason: object) -> str:
    """The fault, from PyTorch's first line, and its explanation from later ones: hints and
    stacks follow.
    """
    what, _, remainder = str(reason).strip().partition("\n")
    explanation = remainder.strip().partition("\n")[0]
    if explanation.startswith(EXPLAINED):
        what += f": {explanation.removeprefix(EXPLAINED)}"
    return what[:MAX_CHARACTERS]


def _function(code: CodeType, compile_options: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a function that is compiled, and its code as a column has it."""
    frame = details.find("frame_around")
    variables = compile_options.get("locals") or {}
    is_pytorchs = frame is not None and code.co_filename == frame.__code__.co_filename
    # PyTorch's own frame around a function.
    if is_pytorchs and (function := variables.get("fn")):
        module = getattr(function, "__self__", function)
        if hasattr(type(module), "forward"):
            return type(module).__name__, code_text(type(module).forward)
        return getattr(function, "__name__", code.co_name), code_text(function)
    name = getattr(code, "co_qualname", code.co_name)  # since CPython 3.11
    module_name = (compile_options.get("globals") or {}).get("__name__")
    kind = type(variables.get(code.co_varnames[0])) if code.co_argcount else object
    name_in_trace = (
        kind.__name__ if code.co_name == "forward" and hasattr(kind, "forward") else code.co_name
    )
    return name_in_trace, python_call_name(
        code.co_filename, code.co_firstlineno, f"{module_name}.{name}"
    )


def _replace(detail: str, ours: Any) -> Callable[[], bool]:
    """Put ours in the place of a function of PyTorch's, and return the way to put that back:
    False if ours isn't there then.
    """
    module, name = details.owner_and_name(detail)
    theirs = getattr(module, name)
    setattr(module, name, ours)

    def put_back() -> bool:
        is_installed = getattr(module, name, None) is ours
        if is_installed:
            setattr(module, name, theirs)
        return is_installed

    return put_back
