"""Keywords of ``torch.profiler.profile`` that ask for more than ``profile(...)`` can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otel_recfn.errors import SettingError
from otel_recfn.settings.checking import suggestion
from otel_recfn.settings.table import PROFILE_SETTINGS
from otel_recfn.support.logs import log

TORCH_PROFILER_ONLY = {
    "acc_events",
    "custom_trace_id_callback",
    "execution_trace_observer",
    "experimental_config",
    "post_processing_timeout_s",
    "use_cuda",
}
"""Keywords of torch.profiler.profile that ``profile(...)`` refuses, unless their value is false or
None.
"""


def log_other_activities(activities: frozenset[str] | None) -> None:
    """Log that activities other than the CPU's aren't recorded, once for each profile."""
    if others := (activities or frozenset()) - {"CPU"}:
        log.warning(
            "profile() records the CPU alone, not %s; use torch.profiler beside it",
            ", ".join(sorted(others)),
        )


def refuse_others(keywords: Mapping[str, Any]) -> None:
    """Refuse keywords that ``profile(...)`` has no parameter for.

    Raises:
        SettingError: there is such a keyword, and it asks for something.
    """
    for name, value in keywords.items():
        if name not in TORCH_PROFILER_ONLY:
            known = [each.name for each in PROFILE_SETTINGS]
            raise SettingError(f"profile() has no {name}; {suggestion(name, known)}")
        if value:
            raise SettingError(
                f"{name}={value!r} is for torch.profiler alone; leave it out, or use torch.profiler"
            )
