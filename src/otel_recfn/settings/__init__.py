"""The settings of an instrumentation: keyword arguments first, then ``OTEL_RECFN_*``, then the defaults."""

from otel_recfn.settings.table import SETTINGS, Settings

__all__ = ["SETTINGS", "Settings"]
