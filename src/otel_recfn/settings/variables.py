"""The environment variables of otel-recfn: those that are wrong, and those that are no setting."""

from __future__ import annotations

import os
from collections.abc import Mapping

from otel_recfn.settings.checking import read_variables, suggestion
from otel_recfn.settings.setting import ENVIRONMENT_PREFIX
from otel_recfn.settings.table import SETTINGS

PROCESS_VARIABLES = {
    ENVIRONMENT_PREFIX + "CACHE_DIR": ("per user", "the directory of the compiled observers")
}
"""The default and the meaning of variables for the whole process, which ``instrument()`` has no
keyword for.
"""


def wrong_variables(environment: Mapping[str, str]) -> list[str]:
    """A message for each variable with a value that isn't allowed, and for each that begins like
    ours and isn't one.
    """
    known = [*[each.variable for each in SETTINGS if each.variable], *PROCESS_VARIABLES]
    messages = read_variables(SETTINGS, environment).messages
    ours = [name for name in environment if name.startswith(ENVIRONMENT_PREFIX)]
    for variable in sorted(set(ours) - set(known)):
        way_out = suggestion(variable, known, ENVIRONMENT_PREFIX)
        messages.append(f"{variable} is not a variable of otel-recfn; {way_out}")
    return messages


def sdk_is_disabled() -> bool:
    """Whether the environment switches OpenTelemetry off, and ``instrument()`` with it."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
