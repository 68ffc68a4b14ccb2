"""Programs that begin where libraries are imported already: PyTorch takes seconds, a fork of a
process that has it none.

    python tests/helpers/prepared_programs.py torch

imports what it is told to, then reads a request per line, forks, and becomes the program in the
child: this falls out of the loop and off the end of this file, so that it ends as the interpreter
ends any program, but for the collector of garbage: it leaves alone what was imported before, of
which nothing is ours. ``gc.unfreeze()`` in a program gives it back.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


class PreparedPrograms:
    """The process that has imported ``modules``, and runs programs.

    Args:
        modules: of ours only what a program imports first of all, and whose import is not looked
            at.
        environment: what Python or the system look at as a process begins.
    """

    def __init__(self, *modules: str, **environment: str) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("OTEL_")
        }
        command = [sys.executable, __file__, *modules]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=inherited | environment,
            text=True,
        )

    def run(
        self,
        script: Path,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run it in its directory; ``environment`` is all that it has.

        Raises:
            subprocess.TimeoutExpired: it did not end in time and was killed.
        """
        outputs = [script.with_name(name) for name in (".stdout", ".stderr")]
        request = {
            "script": str(script),
            "arguments": arguments,
            "environment": environment,
            "outputs": [*map(str, outputs)],
        }
        pid = int(self._ask(json.dumps(request)))
        code = self._wait(pid, time.monotonic() + timeout_s)
        texts = [path.read_text(encoding="utf-8") for path in outputs]
        for path in outputs:
            path.unlink()
        if code is None:
            raise subprocess.TimeoutExpired(str(script), timeout_s, *texts)
        return subprocess.CompletedProcess(str(script), code, *texts)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _wait(self, pid: int, deadline: float) -> int | None:
        ended, _, _ = select.select(
            [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
        )
        if ended:
            return int(self._answer())
        os.kill(pid, 9)
        self._answer()
        return None


def next_program() -> dict[str, Any] | None:
    """In a child, what it is to become; in the parent None, when there is no more to run."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            request: dict[str, Any] = json.loads(line)
            return request
        tell(pid)
        tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return None


def tell(number: int) -> None:
    os.write(1, b"%d\n" % number)


def become(
    script: str, arguments: list[str], environment: dict[str, str], outputs: list[str]
) -> ModuleType:
    """Have what a program has that is started with this command and environment.

    Returns its module.
    """
    os.chdir(os.path.dirname(script))
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, file in enumerate([os.devnull, *outputs]):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv[:] = [script, *arguments]
    sys.path[0:1] = [
        os.path.dirname(script),
        *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    program = ModuleType("__main__")
    program.__file__ = script
    program.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = program
    return program


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    # Else each program would take PyTorch apart at its end, which is most of the time of many.
    gc.freeze()
    found = next_program()
    if found is not None:
        itself = sys.modules["__main__"]  # else its globals would be cleared under the program
        main = become(**found)
        exec(compile(Path(found["script"]).read_bytes(), found["script"], "exec"), main.__dict__)
