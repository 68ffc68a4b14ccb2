"""The threads of a trace: their names, and which of them are lanes of a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_recfn.model.columns import Track
from otel_recfn.report.activities import Activity, Lane, is_device, is_stream

THREAD = "thread "
"""The beginning of the names of threads that Python doesn't know."""


class TraceThreads:
    """The threads of a trace, numbered in the order of their first events."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, Any], int] = {}
        self._labels: dict[tuple[Any, Any], str] = {}
        """The name of each thread, by process and thread; and the names and labels of processes,
        by process and ``process_name`` or ``process_labels``.
        """
        self.streams: set[int] = set()
        """The threads of slices that say in which stream of a device they ran."""

    def number(self, event: dict[str, Any]) -> int:
        """The number of an event's thread."""
        return self._numbers.setdefault((event.get("pid"), event.get("tid")), len(self._numbers))

    def add_label(self, event: dict[str, Any]) -> None:
        """Add the name that an event has for a thread or process."""
        whose = event["tid"] if event["name"] == "thread_name" else event["name"]
        args = event["args"]
        label = args["labels"] if whose == "process_labels" else args["name"]
        self._labels[event["pid"], whose] = str(label)

    @property
    def script(self) -> str:
        """The script of Python that ran; empty if the trace names none."""
        scripts = [
            name
            for (_, whose), name in self._labels.items()
            if whose == "process_name" and name.endswith(".py")
        ]
        return scripts[0] if scripts else ""

    def tracks(self) -> list[Track]:
        """The threads as a batch has them, in the order of their numbers."""
        tracks = []
        for number, (pid, tid) in enumerate(self._numbers, 1):
            native_id = tid if isinstance(tid, int) else number
            name = self._labels.get((pid, tid)) or f"{THREAD}{tid}"
            tracks.append(Track(number, native_id, native_id, 0, name))
        return tracks

    def unknown_to_python(self) -> set[int]:
        """The threads that Python has no name for, as those of autograd."""
        return {
            number
            for key, number in self._numbers.items()
            if self._labels.get(key, THREAD).startswith(THREAD)
        }

    def activities(
        self, thread: NDArray[np.int64], lane: NDArray[np.int64], on_device: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The Activity of each slice.

        If a category doesn't say whether its slices are a device's, the thread does: it is a
        device's if a slice, its name or its process says so, and no slice of it is the CPU's.

        Args:
            thread: the thread of each slice.
            lane: the Lane that its category says.
            on_device: its Activity, if it is a device's.
        """
        has_cpu_slices = np.zeros(len(self._numbers) + 1, np.bool_)
        has_cpu_slices[thread[lane == Lane.CPU]] = True
        is_stream_thread, is_device_thread = self._device_threads()
        is_device_thread[thread[lane == Lane.DEVICE]] = True
        is_device_thread = (is_device_thread | is_stream_thread) & ~has_cpu_slices
        is_unknown = lane == Lane.UNKNOWN
        is_on_device = (
            (lane == Lane.DEVICE)
            | ((lane == Lane.EITHER) & ~has_cpu_slices[thread])
            | (is_unknown & is_device_thread[thread])
        )
        # Outside of a stream it is a sum or an annotation, unless its name says what it did.
        is_marker = is_unknown & (on_device == Activity.KERNEL) & ~is_stream_thread[thread]
        activity = np.where(is_marker, int(Activity.MARKER), on_device)
        return np.where(is_on_device | (lane == Lane.CPU), activity, int(Activity.CPU))

    def _device_threads(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each thread is a stream of a device, and whether its process is a device."""
        are_streams = np.zeros(len(self._numbers) + 1, np.bool_)
        are_devices = np.zeros(len(self._numbers) + 1, np.bool_)
        for number, (pid, tid) in enumerate(self._numbers):
            name = self._labels.get((pid, "process_name"), "")
            labels = self._labels.get((pid, "process_labels"), "")
            thread_name = self._labels.get((pid, tid), "")
            are_streams[number] = number in self.streams or is_stream(thread_name)
            are_devices[number] = is_device(name, labels)
        return are_streams, are_devices
