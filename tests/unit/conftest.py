"""A process that forks fast."""

from __future__ import annotations

from helpers.small_process import in_small_process  # noqa: F401
