"""The process's one session: what records, and for whom."""

from otel_recfn.session.process import process_session
from otel_recfn.session.session import Session

__all__ = ["Session", "process_session"]
