"""The ten scopes of PyTorch's RecordFunction, in its order (source: ``at::RecordScope``)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from otel_recfn.model.errors import SettingError


class RecordScope(IntEnum):
    """What kind of range a RecordFunction announces. The values are PyTorch's."""

    FUNCTION = 0
    BACKWARD_FUNCTION = 1
    TORCHSCRIPT_FUNCTION = 2
    KERNEL_FUNCTION_DTYPE = 3
    CUSTOM_CLASS = 4
    BUILD_FEATURE = 5
    LITE_INTERPRETER = 6
    USER_SCOPE = 7
    STATIC_RUNTIME_OP = 8
    STATIC_RUNTIME_MODEL = 9


NUM_SCOPES = len(RecordScope)
ALL_SCOPES_MASK = (1 << NUM_SCOPES) - 1


def scopes_mask(scopes: Iterable[RecordScope] | None) -> int:
    """A bit per scope, bit n for value n. None and the empty set mean every scope.

    Raises:
        SettingError: not an iterable of RecordScope.
    """
    try:
        mask = sum({1 << RecordScope(scope) for scope in scopes or ()})
    except (TypeError, ValueError):
        allowed = ", ".join(member.name for member in RecordScope)
        raise SettingError(f"scopes={scopes!r} is not allowed; allowed: None or a set of RecordScope: {allowed}") from None
    return mask or ALL_SCOPES_MASK
