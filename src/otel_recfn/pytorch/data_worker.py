"""Whether this process is a worker of a DataLoader, and of which kind.

Both are read where multiprocessing keeps the process's target and its arguments, in private
attributes: what is public (``torch.utils.data.get_worker_info``) is there only until the worker's
loop ends, and its ranges may be drained after that.
``tests/integration/test_data_workers_exports.py`` notices when they change.
"""

from __future__ import annotations

import inspect
import multiprocessing.process
from collections.abc import Mapping
from typing import Any

from otel_recfn.support.processes import WorkerProcess

LOOPS = "torch.utils.data."
"""The begin of the target's module."""
NUMBER, PERSISTENT = "worker_id", "persistent_workers"
"""The names of the target's arguments for the worker's number and for whether workers outlive
their iterator.
"""


def data_worker() -> WorkerProcess | None:
    """The work of this process for a DataLoader; None if it has none, or has not come far enough
    to know.

    Never raises.
    """
    arguments = _loop_arguments()
    number = arguments.get(NUMBER)
    if not isinstance(number, int):
        return None
    return WorkerProcess(f"DataLoader worker {number}", arguments.get(PERSISTENT) is False)


def _loop_arguments() -> Mapping[str, Any]:
    process = multiprocessing.process.current_process()
    target = getattr(process, "_target", None)
    args = getattr(process, "_args", ())
    if not str(getattr(target, "__module__", "")).startswith(LOOPS):
        return {}
    try:
        return inspect.signature(target).bind(*args).arguments  # type: ignore[arg-type]
    except (TypeError, ValueError):  # another PyTorch's target or arguments
        return {}
