"""An OTLP server in a process of its own that takes spans and forgets them.

with server() as endpoint: ...
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@contextmanager
def server() -> Iterator[str]:
    """Runs while the ``with`` block does; its endpoint."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.communicate()


class _Discarding(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore]
    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return (
            grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
            if call.method == METHOD
            else None
        )


def main() -> None:
    """The server: says its port, and serves until its input ends."""
    serving = grpc.server(ThreadPoolExecutor(max_workers=2))
    serving.add_generic_rpc_handlers((_Discarding(),))
    print(serving.add_insecure_port("127.0.0.1:0"), flush=True)
    serving.start()
    sys.stdin.read()
    serving.stop(grace=1).wait()


if __name__ == "__main__":
    main()
