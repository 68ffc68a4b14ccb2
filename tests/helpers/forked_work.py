"""Work that is done in a forked child, which then ends without what the parent's pytest has
registered for its exit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """The number of a child that does the work, and whose exit code is 0 unless it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            os._exit(status)
    return child


def in_child(work: Callable[[], object]) -> int:
    """Fails where the work in the child fails; gives the child's number."""
    child = fork(work)
    assert os.waitpid(child, 0)[1] == 0
    return child


def killed_in_child(work: Callable[[], object]) -> None:
    """The child kills itself, at the latest when it has done the work."""

    def work_and_die() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(fork(work_and_die), 0)[1] == signal.SIGKILL
