"""A session of ``requests`` whose answers come within the timeout as a whole.

For requests itself the timeout begins anew with every byte, so that a server which sends one now and then would hold a sender
for as long as it likes. What comes before the answer is bounded already: making a connection, its TLS, and sending the body
take the timeout each, at most.
"""

from __future__ import annotations

import io
import time
from functools import cache
from http.client import HTTPResponse
from typing import Any

from requests import Response, Session
from requests.adapters import HTTPAdapter
from urllib3 import Timeout


def bounded_session(session: Session) -> Session:
    """Configured as this one is, with connections of its own; this one where it has adapters or methods of the program's."""
    adapters: dict[str, Any] = dict(session.adapters)
    if type(session) is not Session or {type(adapter) for adapter in adapters.values()} != {HTTPAdapter}:
        return session
    bounded = Session()
    vars(bounded).update(vars(session), adapters=type(session.adapters)())
    try:
        for prefix, adapter in adapters.items():
            bounded.mount(prefix, _BoundedAdapter(max_retries=adapter.max_retries))
    except AttributeError:  # a urllib3 that keeps the classes of its connections elsewhere
        return session
    return bounded


class _BoundedAdapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **keywords: Any) -> None:
        super().init_poolmanager(*arguments, **keywords)
        _bound(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **keywords: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **keywords)
        _bound(manager)
        return manager

    def send(self, *arguments: Any, **keywords: Any) -> Response:
        keywords["timeout"] = Timeout(total=keywords.get("timeout"))
        return super().send(*arguments, **keywords)


def _bound(manager: Any) -> None:
    """Connections that the manager makes are bounded."""
    pools = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _bounded_pool(pool) for scheme, pool in pools.items()}


@cache
def _bounded_pool(pool: Any) -> Any:
    connection = pool.ConnectionCls
    if issubclass(connection, _Bounded):
        return pool
    return type(pool.__name__, (pool,), {"ConnectionCls": type(connection.__name__, (_Bounded, connection), {})})


class _Answer(HTTPResponse):
    def __init__(self, sock: Any, *arguments: Any, **keywords: Any) -> None:
        super().__init__(sock, *arguments, **keywords)
        timeout_s = sock.gettimeout() if hasattr(sock, "gettimeout") else None
        if timeout_s is not None:
            self.fp = io.BufferedReader(_Reads(self.fp.detach(), sock, timeout_s))


class _Bounded:
    """A connection."""

    response_class = _Answer

    def request(self, *arguments: Any, **keywords: Any) -> Any:
        connection: Any = self
        if connection.sock is not None:  # kept from the last request, with what that one had left of its time
            connection.sock.settimeout(connection.timeout)
        return super().request(*arguments, **keywords)  # type: ignore[misc]


class _Reads(io.RawIOBase):
    """What a socket receives, all of it within the timeout."""

    def __init__(self, raw: Any, sock: Any, timeout_s: float) -> None:
        self._raw, self._sock = raw, sock
        self._by = time.monotonic() + timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._by - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer has not come in time")
        self._sock.settimeout(left)
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()
