"""What torch.profiler.profile takes and ``profile(...)`` doesn't: told as such, but for what changes nothing there."""

from __future__ import annotations

from typing import Any

from otel_recfn.model.errors import SettingError
from otel_recfn.settings.table import PROFILE_SETTINGS

ITS_OWN = {
    "acc_events": (None, False),
    "custom_trace_id_callback": (None,),
    "execution_trace_observer": (None,),
    "experimental_config": (None,),
    "use_cuda": (None, False),
}
"""Keywords of its own, each with the values that ask for nothing."""
NO_EFFECT = "post_processing_timeout_s"
"""How long Kineto may take at the end: there is no Kineto here."""


def refuse_others(keywords: dict[str, Any]) -> None:
    """Refuse keywords that ``profile(...)`` has no parameter for.

    Raises:
        SettingError: one asks for something.
    """
    for name, value in keywords.items():
        if name not in ITS_OWN and name != NO_EFFECT:
            raise SettingError(f"profile() has no {name}; it has {', '.join([each.name for each in PROFILE_SETTINGS])}")
        if name in ITS_OWN and not any(value is allowed for allowed in ITS_OWN[name]):
            raise SettingError(f"{name}={value!r} is for torch.profiler alone; leave it out, or use torch.profiler")
