"""torch imported after, before and while somebody asks for it; never imported by us.

A torch of two lines serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.timeouts import PATIENCE_S
from otel_recfn.pytorch import late_import as late_torch

SOURCE = Path(late_torch.__file__).parents[2]
PRELUDE = """
import logging, sys, threading
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
from otel_recfn.pytorch.late_import import _waiting, call_at_import, call_at_torch_import
assert "torch" not in sys.modules
ran = []
def note(): ran.append(getattr(sys.modules["torch"], "complete", False))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("complete = True\n")
    return tmp_path


def run(site: Path, program: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{SOURCE}"}
    command = [sys.executable, "-c", PRELUDE + program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_again_after_being_called_off(site: Path) -> None:
    run(
        site,
        """
for _ in range(100):
    call_at_torch_import(note)()
assert len(_waiting["torch"]) == 1  # what was called off is not kept
call_at_torch_import(note)
import torch
assert ran == [True]
from wrapt import importer
assert not importer._post_import_hooks
""",
    )


def test_a_callback_that_raises_does_not_break_the_import(site: Path) -> None:
    output = run(
        site,
        "call_at_torch_import(lambda: 1 / 0); call_at_torch_import(note); import torch; assert"
        " ran == [True]",
    )
    assert output.count("ERROR otel-recfn could not attach to torch") == 1


def test_an_import_that_fails_first(site: Path) -> None:
    (site / "torch" / "__init__.py").write_text(
        "import sys\nif not hasattr(sys, 'again'): sys.again = 1; raise ImportError\ncomplete ="
        " True\n"
    )
    run(
        site,
        """
call_at_torch_import(note)
try: import torch
except ImportError: pass
assert ran == []
import torch
assert ran == [True]
""",
    )


def test_while_it_is_being_imported_that_is_said(site: Path) -> None:
    (site / "torch" / "__init__.py").write_text(
        "import __main__\n__main__.call_at_torch_import(__main__.note)\n"
    )
    output = run(
        site, "import torch; assert not ran; call_at_torch_import(note); assert ran == [False]"
    )
    assert output.startswith(
        "WARNING otel-recfn was asked for while torch is being imported: operators"
    )


def test_a_part_that_torch_imports_late(site: Path) -> None:
    (site / "torch" / "late.py").write_text("complete = True\n")
    run(
        site,
        """
late = []
call_at_import("torch.late", lambda: late.append(sys.modules["torch.late"].complete), "nothing")
call_at_torch_import(note)
import torch
assert (ran, late) == ([True], [])
import torch.late
assert late == [True]
call_at_import("torch.late", lambda: late.append(2), "nothing")
assert late == [True, 2]
""",
    )
