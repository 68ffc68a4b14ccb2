"""Attributes that torch.profiler's events and averages have, and ours by the same names."""

from __future__ import annotations

import sys
from typing import Any

from otel_recfn.batches.text_tables import time_text


def time_attribute(name: str) -> Any:
    """A property: an attribute's microseconds as text, in the unit that fits."""
    return property(lambda self: time_text(getattr(self, name)))


class TorchAttributes:
    """The attributes of torch.profiler's events and averages that follow from others, or that the
    CPU's have no value for.

    Source: ``FormattedTimesMixin``, ``FunctionEvent`` and ``FunctionEventAvg`` of
    torch.autograd.profiler_util.
    """

    __slots__ = ()
    cpu_time_str = time_attribute("cpu_time")
    cpu_time_total_str = time_attribute("cpu_time_total")
    self_cpu_time_total_str = time_attribute("self_cpu_time_total")
    device_time_str = time_attribute("device_time")
    device_time_total_str = time_attribute("device_time_total")
    self_device_time_total_str = time_attribute("self_device_time_total")
    cuda_time = device_time = 0.0
    """0, as a device's time isn't recorded; so are the next ones."""
    device_time_total = self_device_time_total = 0
    use_device = None
    """None, as no device is recorded."""
    overload_name = ""
    """Empty, as torch.profiler's is by default."""
    is_legacy = is_remote = False

    @property
    def device_type(self) -> Any:
        """``torch.autograd.DeviceType.CPU``; None in a program that hasn't imported torch."""
        torch: Any = sys.modules.get("torch")
        return torch.autograd.DeviceType.CPU if torch is not None else None
