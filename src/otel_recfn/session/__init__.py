"""The one session of the process: what records, and for which captures."""

from otel_recfn.session.session import Session, process_session

__all__ = ["Session", "process_session"]
