"""Whether this process is a worker of a DataLoader, and of which kind.

The number is public (``torch.utils.data.get_worker_info``). Whether workers outlive their iterator is an argument of the
process's target alone, which ``multiprocessing`` keeps in private attributes; without them a worker counts as one that does.
``tests/integration/test_data_workers.py`` notices when they change.
"""

from __future__ import annotations

import inspect
import multiprocessing.process
import sys
from collections.abc import Callable
from typing import Any

from otel_recfn.model.worker_process import WorkerProcess

PERSISTENT = "persistent_workers"
"""The argument's name."""


def data_worker() -> WorkerProcess | None:
    """This process as a worker of a DataLoader; None if it is none, or is not far enough to know. Never raises."""
    get_worker_info: Callable[[], Any] | None = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    info = get_worker_info() if get_worker_info is not None else None
    number = getattr(info, "id", None)
    return WorkerProcess(f"DataLoader worker {number}", _of_one_iterator()) if isinstance(number, int) else None


def _of_one_iterator() -> bool:
    process = multiprocessing.process.current_process()
    target, args = getattr(process, "_target", None), getattr(process, "_args", ())
    try:
        arguments = inspect.signature(target).bind(*args).arguments  # type: ignore[arg-type]
    except (TypeError, ValueError):  # the target, or its arguments, are not what they were
        return False
    return arguments.get(PERSISTENT) is False
