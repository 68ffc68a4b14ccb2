"""The source of samples: what Python runs in threads while they record nothing.

    native looks, 50 a second ─► threads that have recorded nothing for a millisecond
                                    │  current_frames(), by thread
                                    ▼
    drain ◄─ sample ◄─ "save_checkpoint: gzip.compress"

A thread that runs operators is looked at and not sampled, so that nothing is paid where nothing is
missing: the look needs no GIL. A sample stands for the time from the look before until its frames
are read, for which a thread that holds the GIL may make it wait. It is placed by what the thread
had recorded by then, so the ranges around it are exact
(``native/drain/python_samples.hpp``). In an operator there is none, unless the thread waits there:
CPU clocks say so, and which other threads work (``native/core/thread_clocks.hpp``). They are read
with the samples, so that nothing is read where no thread is quiet. If other threads work, the
kernel says whether the one that waits does so for a lock or the GIL, or sleeps or reads.

A sample in a DataLoader has the index of the item that is made (``loaded_items.py``).

Where Python calls are traced, they say the same exactly, and nothing is sampled.
"""

from __future__ import annotations

import os
import sysconfig
import threading
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from otel_recfn import _native
from otel_recfn.model.events import OTHER_PROCESSES, EventSource, Extra
from otel_recfn.sources.loaded_items import loaded_item
from otel_recfn.sources.protocol import Source, Wanted
from otel_recfn.support.forks import Order, OwnThread, around_forks, at_work
from otel_recfn.support.logs import log
from otel_recfn.support.threads import threads_are_greenlets

LOOK_SECONDS = 1.0
"""The seconds for which a wait looks, before it asks whether it should end."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The number of cores that the process may use."""
END_SECONDS = 1.0
"""The maximum seconds that a stop waits for the thread."""
FUTEX_CALLS = {"x86_64": b"202", "aarch64": b"98"}
"""The number of the system call in which threads wait for a lock or the GIL, by machine."""
FUTEX_CALL = FUTEX_CALLS.get(os.uname().machine) if hasattr(os, "uname") else None
MAX_CALL_BYTES = 256
LIBRARIES = (
    "<frozen ",
    str(Path(__file__).parents[1]),
    *sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}),
)
"""The beginnings of the names of files that aren't the program's own."""
EVENT_LOOP = "asyncio."
"""The beginning of the names of the modules of an event loop."""


class PythonSamples(Source):
    """A source of samples of Python functions. One thread at a time uses it."""

    name = "outside"

    def __init__(self) -> None:
        self._thread: OwnThread | None = None
        """Our thread, from its start until it is asked to end."""
        around_forks(Order.CALLS, in_child=self._after_fork_in_child)

    def enable(self, wanted: Wanted) -> None:
        """Sample, unless nobody wants samples or Python calls are traced."""
        are_wanted = wanted.extras & Extra.SAMPLES
        if not are_wanted or EventSource.PYTHON_CALL in wanted.sources:
            self.disable()
        elif self._thread is None and not threads_are_greenlets():
            _native.begin_looks()
            self._start()

    def disable(self) -> None:
        """End our thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            _native.wake_looks()
            thread.wait_for_end(END_SECONDS)

    def _start(self) -> None:
        self._thread = thread = OwnThread(self._run, "otel-recfn sampler")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads here
            self._thread = None
            log.warning("no thread samples what runs outside of PyTorch (%s)", error)

    def _after_fork_in_child(self) -> None:
        if self._thread is not None:
            self._start()

    def _run(self) -> None:
        own = threading.current_thread()
        while self._thread is own:
            quiet = _native.wait_for_quiet(LOOK_SECONDS)
            if quiet and self._thread is own:
                with at_work():
                    _sample(quiet)


def _sample(quiet: list[_native.QuietThread]) -> None:
    frames = _native.current_frames()
    # Among them is the frame of this call, which has them: in a circle they would keep what the
    # program's functions have, large tensors for instance, until a garbage collection.
    frames.pop(threading.get_ident(), None)
    for thread in quiet:
        frame = frames.get(thread.ident)
        if frame is not None:  # else Python doesn't know the thread
            name = function_name(frame)
            _native.add_sample(
                thread_number=thread.number,
                position=thread.position,
                duration_ns=thread.duration_ns,
                name=name,
                waits_for=waits_for(thread, name),
                item=loaded_item(frame),
            )


def waits_for(thread: _native.QuietThread, name: str) -> str:
    """What a thread in a function of that name waits for; empty if it works, or if it isn't known
    to wait.

    A thread of Python's that worked meanwhile may have the GIL or a lock, unless the kernel says
    that the waiting thread sleeps or reads. One that Python doesn't know mostly works for the
    thread that waits, as those of operators do. A thread that waits for a core waits for other
    processes, unless threads of this one have half of the cores.
    """
    waited_ns = thread.interval_ns - thread.worked_ns
    if 2 * waited_ns < thread.interval_ns or thread.interval_ns == 0:
        return ""
    has_no_core = 2 * thread.coreless_ns >= waited_ns
    least_ns = CORES * thread.interval_ns if has_no_core else waited_ns
    busiest = _thread_name(thread.busiest) if 2 * thread.others_ns >= least_ns else ""
    if busiest and (has_no_core or not sleeps_or_reads(thread.native_id)):
        return busiest
    return OTHER_PROCESSES if has_no_core else name


def sleeps_or_reads(native_id: int) -> bool:
    """Whether the kernel says that a thread of this process waits in a system call, and not for a
    lock or the GIL.
    """
    try:
        file = os.open(f"/proc/self/task/{native_id}/syscall", os.O_RDONLY)
    except OSError:  # another system, or the thread has ended
        return False
    try:
        call = os.read(file, MAX_CALL_BYTES).split()
    except OSError:
        return False
    finally:
        os.close(file)
    # A thread that runs has one word. One that waits in no call, as for a page, has the number -1.
    is_in_call = len(call) > 1 and call[0] != b"-1"
    return FUTEX_CALL is not None and is_in_call and call[0] != FUTEX_CALL


def _thread_name(native_id: int) -> str:
    """The name of a thread; empty if Python doesn't know it."""
    return next((each.name for each in threading.enumerate() if each.native_id == native_id), "")


def function_name(frame: FrameType) -> str:
    """The name of what runs in a frame: the innermost function of the program, and the library
    function that it called. Without one of the program's, the innermost function.

    An event loop that waits is named instead of a server that runs it: it waits for work.
    """
    called: FrameType | None = None
    loop: FrameType | None = None
    program_frame: FrameType | None = frame
    while program_frame is not None and not _is_programs(program_frame.f_code.co_filename):
        loop = program_frame if _module(program_frame).startswith(EVENT_LOOP) else loop
        called = program_frame
        program_frame = program_frame.f_back
    if program_frame is None:
        return _library_name(frame)
    name = _name(program_frame.f_code)
    if loop is not None and _waits_for_events(frame):
        called = loop
    return f"{name}: {_library_name(called)}" if called is not None else name


def _waits_for_events(frame: FrameType) -> bool:
    """Whether an event loop runs in a frame, or waits there for its next event."""
    caller = frame.f_back if _module(frame) == "selectors" else frame
    return caller is not None and _module(caller).startswith(EVENT_LOOP)


@lru_cache(4096)
def _is_programs(filename: str) -> bool:
    return not filename.startswith(LIBRARIES)


def _name(code: CodeType) -> str:
    if code.co_name == "<module>":
        return Path(code.co_filename).name
    return str(getattr(code, "co_qualname", code.co_name))  # from CPython 3.11 on


def _library_name(frame: FrameType) -> str:
    return f"{_module(frame)}.{_name(frame.f_code)}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))
