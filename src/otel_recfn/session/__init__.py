"""The process's one session: what records, and for whom."""

from otel_recfn.session.session import Session, process_session

__all__ = ["Session", "process_session"]
