"""The activities of a device, known by Kineto's activity types, and else by the lanes that they
stand in.

Kineto wrote the same type under several names (``Kernel``, ``kernel``), other devices have names of
their own, and an NPU's slices have none. What a device did takes no time of the CPU, so that it is
told from the names alone only where they are known.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple


class Activity(IntEnum):
    """The activity that a slice shows; from KERNEL on, it is the device's and not the CPU's."""

    CPU = 0
    RUNTIME = 1
    """A call of the CPU's into the device's runtime or driver."""
    KERNEL = 2
    MEMCPY = 3
    MEMSET = 4
    COLLECTIVE = 5
    """A kernel that exchanges data with other ranks."""
    SYNC = 6
    """A wait of the device's."""
    MARKER = 7
    """What stands in a device's lane and is no work: annotations, events, counters, and sums of
    other lanes.
    """


WORK = (Activity.KERNEL, Activity.MEMCPY, Activity.MEMSET, Activity.COLLECTIVE)
"""The activities for which a device is busy."""


class Lane(IntEnum):
    """The lane that slices of a category stand in."""

    CPU = 0
    DEVICE = 1
    EITHER = 2
    """A device's, unless slices of the CPU stand there."""
    UNKNOWN = 3
    """The CPU's, unless the lane is a device's."""


class Category(NamedTuple):
    """What the category of a slice says."""

    lane: Lane
    activity: Activity


_UNKNOWN = Category(Lane.UNKNOWN, Activity.KERNEL)
_CATEGORIES = [
    (re.compile(pattern), category)
    for pattern, category in (
        (
            r"cpu_op|operator|user_annotation|python\w*|module|cpu_instant_event|trace",
            Category(Lane.CPU, Activity.CPU),
        ),
        (r"(?:\w+_)?(?:runtime|driver)", Category(Lane.CPU, Activity.RUNTIME)),
        (r"(?:concurrent_)?kernel|\w+_ccp_events", Category(Lane.DEVICE, Activity.KERNEL)),
        (r"(?:\w+_)?memcpy", Category(Lane.DEVICE, Activity.MEMCPY)),
        (r"(?:\w+_)?memset", Category(Lane.DEVICE, Activity.MEMSET)),
        (r"\w+_sync", Category(Lane.DEVICE, Activity.SYNC)),
        (r"hpu_op", Category(Lane.EITHER, Activity.KERNEL)),
        (r"collective_comm", Category(Lane.EITHER, Activity.COLLECTIVE)),
        (r"(?:gpu|mtia|cuda|xpu|hip)_\w+", Category(Lane.DEVICE, Activity.MARKER)),
        # The profiler's own time, in a lane of its own, which stands in the runtime's calls, too.
        (r"overhead", Category(Lane.DEVICE, Activity.MARKER)),
    )
]
"""Kineto's activity types, also by the names of earlier versions; the first pattern that fits a
category counts.
"""
_NAME_ACTIVITIES = [
    (re.compile(pattern, re.IGNORECASE), activity)
    for pattern, activity in (
        (r"nccl|hccl|hcom_|oneccl", Activity.COLLECTIVE),
        (r"mem_?cpy", Activity.MEMCPY),
        (r"mem_?set", Activity.MEMSET),
        (r"(?:event|notify|stream)_?wait|synchroni[sz]e", Activity.SYNC),
    )
]
STREAM_ARGUMENTS = frozenset(["stream", "Stream Id"])
"""The arguments that only a device's slices have, where their category is none of Kineto's."""
_STREAM = re.compile(r"stream #?\d", re.IGNORECASE)
_DEVICE_LABEL = re.compile(r"\b(?:GPU|NPU|HPU|XPU|TPU|MTIA|MLU|GCU)\b")
_DEVICE_NAME = re.compile(
    r"(?:\d+ )?(?:GPU|NPU|HPU|XPU|TPU|MTIA) ?\d*|/device:.*|Ascend"
    r" Hardware|Communication|HCCL|Overlap Analysis|AI Core Freq"
)


def known_category(text: str) -> Category:
    """What this category says, however it is spelled."""
    lower = text.lower()
    return next(
        (category for pattern, category in _CATEGORIES if pattern.fullmatch(lower)), _UNKNOWN
    )


def device_activity(name: str, category: Category) -> Activity:
    """The activity of a slice with this name, if it is a device's."""
    found = next(
        (activity for pattern, activity in _NAME_ACTIVITIES if pattern.search(name)),
        category.activity,
    )
    is_collective = (category.activity, found) == (Activity.KERNEL, Activity.COLLECTIVE)
    return found if category.lane is Lane.UNKNOWN or is_collective else category.activity


def is_stream(thread_name: str) -> bool:
    """Whether the lane of this name is a device's stream."""
    return _STREAM.match(thread_name) is not None


def is_device(process_name: str, process_labels: str) -> bool:
    """Whether the lanes of a process are a device's: what it is called, and the labels that it
    has.
    """
    return (
        _DEVICE_LABEL.search(process_labels) is not None
        or _DEVICE_NAME.fullmatch(process_name) is not None
    )
