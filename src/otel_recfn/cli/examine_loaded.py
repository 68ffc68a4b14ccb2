"""The doctor on what shows only where PyTorch is loaded: observer, callbacks, and what we rely on in Python.

They share one process beside the doctor's: a broken torch may take its process down, and each import of it takes seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from otel_recfn.cli.check import Check
from otel_recfn.model.errors import RecfnError
from otel_recfn.pytorch import details, observer_build
from otel_recfn.pytorch.observer_build import Library

LOAD_SECONDS = 300
LOAD_OBSERVER = """
from otel_recfn.recording.recorder import recorder
from otel_recfn.pytorch.observer import TorchObserver
observer = TorchObserver(recorder)
observer.ensure_loaded()
print(observer.status().features)
"""
LOAD_CALLBACKS = """
from otel_recfn.callbacks import torch_callbacks
print(torch_callbacks.load(lambda *_error: True).features())
"""
FIND_DETAILS = """
import torch.utils.checkpoint
from otel_recfn.pytorch import details
print(*details.missing_in_python())
"""
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys, traceback
import torch
for program in sys.argv[1:]:
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(program, {})
    except BaseException as raised:
        error = traceback.format_exception_only(raised)[-1].strip()
    print(json.dumps([said.getvalue(), error]), flush=True)
"""
NAMES = ("observer", "callbacks", "details")


class Said(NamedTuple):
    """What a program printed, and the error that ended it, or nothing."""

    text: str
    error: str


def loaded() -> dict[str, Check]:
    """The checks of NAMES."""
    programs = {"details": FIND_DETAILS, "observer": LOAD_OBSERVER, "callbacks": LOAD_CALLBACKS}
    found: dict[str, str | Check] = {
        "details": _torch(),
        "observer": _built("observer", observer_build.TORCH_OBSERVER),
        "callbacks": _built("callbacks", observer_build.TORCH_CALLBACKS),
    }
    places = {name: place for name, place in found.items() if isinstance(place, str)}
    checks = {name: check for name, check in found.items() if isinstance(check, Check)}
    for (name, place), said in zip(places.items(), _run_with_torch([programs[name] for name in places]), strict=True):
        checks[name] = _details(said) if name == "details" else _library(name, place, said)
    checks["callbacks"] = replace(checks["callbacks"], ok=checks["callbacks"].ok or None)  # spans and files do without
    return checks


def _torch() -> str | Check:
    try:
        return str(observer_build.find_torch().directory)
    except RecfnError:
        return Check("details", None, "torch is not here, so nothing is looked for in it")


def _built(name: str, library: Library) -> str | Check:
    """Where it is; or a check, where it can't be loaded yet."""
    try:
        path = observer_build.find_built(library)
        if path is None:
            observer_build.find_compiler()
            text = f"not built yet; built at first use, about {library.seconds} s, or now with `otel-recfn build`"
            return Check(name, True, text)
    except RecfnError as error:
        return Check(name, False, f"cannot be built: {error}")
    return str(path)


def _library(name: str, path: str, said: Said) -> Check:
    """Whether it can be loaded, and what it found in this torch."""
    if said.error:
        return Check(name, False, f"{path} cannot be loaded: {said.error}")
    found, missing = details.found_and_missing(said.text)
    if missing:
        known: Mapping[str, details.Detail] = details.OPERATORS if name == "observer" else details.CALLBACKS
        return Check(name, None, f"{path}, but this torch lacks details; {details.losses(missing, known)}")
    return Check(name, True, f"{path}, found in this torch: {', '.join(found)}")


def _details(said: Said) -> Check:
    """Whether this torch has what our Python code relies on; for each detail that it lacks, what is lost."""
    if said.error:
        return Check("details", False, f"torch cannot be examined: {said.error}")
    if missing := said.text.split():
        return Check("details", None, f"this torch lacks some; {details.losses(missing, details.PYTHON)}")
    return Check("details", True, "this torch has all that is looked for in Python")


def _run_with_torch(programs: Sequence[str]) -> list[Said]:
    """What each of them says. Where one takes the process down, the next ones go on in another."""
    said: list[Said] = []
    while left := programs[len(said) :]:
        command = [sys.executable, "-c", ONE_AFTER_ANOTHER, *left]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOAD_SECONDS)
        except subprocess.TimeoutExpired:
            return [*said, *[Said("", f"it took over {LOAD_SECONDS} s; does `import torch` work?")] * len(left)]
        said += [Said(*json.loads(line)) for line in done.stdout.splitlines()]
        if len(said) < len(programs):
            last = (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]
            said.append(Said("", last))
    return said
