"""The demo and a server's requests through a real Collector into a real Jaeger, which is asked for
what came.

``OTEL_RECFN_JAEGER`` names Jaeger's binary, version 2, which is a Collector too; without it nothing
is tested here. Both run as docs/collector.md says, so their ports have to be free.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from helpers.jaeger_binary import JAEGER
from helpers.timeouts import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.one_python,
    pytest.mark.skipif(not JAEGER, reason="OTEL_RECFN_JAEGER names no binary of Jaeger"),
]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = "http://localhost:16686"
COLLECTORS_METRICS = "http://localhost:8889/metrics"
REQUESTS = 50
Span = dict[str, Any]


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    ends_by: signal.Signals = signal.SIGINT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended by a signal, that of Ctrl-C if no other is given."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(ends_by)
            process.wait(PATIENCE_S)


def wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")
        with socket.socket() as connection:
            return connection.connect_ex(("localhost", port)) == 0

    wait_until(listens)


def ask_jaeger(path: str) -> Any:
    """What Jaeger answers."""
    with urlopen(f"{PAGE}/api/{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)["data"]


def traces_of(service: str, tags: Mapping[str, str] | None = None) -> list[list[Span]]:
    """The spans of each trace of a service."""
    searched = f"&tags={quote(json.dumps(tags))}" if tags else ""
    return [
        trace["spans"]
        for trace in ask_jaeger(f"traces?service={service}&limit=1000&lookback=1h{searched}")
    ]


def counted_by_collector(metric: str) -> int:
    """How many spans a counter of the Collector's shows; 0 before its first."""
    with urlopen(COLLECTORS_METRICS, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    counts = re.findall(rf"^otelcol_{metric}_spans\S*\{{.*\}} (\S+)$", text, re.MULTILINE)
    return sum(int(float(count)) for count in counts)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Collector with the project's configuration, and Jaeger behind it."""
    folder = tmp_path_factory.mktemp("backends")
    ports = [
        f"--set=receivers.otlp.protocols.{name}.endpoint=localhost:{port}"
        for name, port in (("grpc", 14317), ("http", 14318))
    ]
    killed = partial(running, ends_by=signal.SIGKILL)  # their own end takes ten seconds
    with killed([JAEGER, *ports], folder / "jaeger.log") as jaeger:
        wait_until_it_listens(jaeger, 14317, folder / "jaeger.log")
        wait_until_it_listens(jaeger, 16686, folder / "jaeger.log")
        configured = [JAEGER, "--config", str(ROOT / "collector-config.yaml")]
        with killed(configured, folder / "collector.log") as collector:
            wait_until_it_listens(collector, 4317, folder / "collector.log")
            yield


@pytest.fixture
def environment() -> dict[str, str]:
    """Without what this process was told for OpenTelemetry."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") or name == "OTEL_RECFN_CACHE_DIR"
    }


def names_above(span: Span, by_id: Mapping[str, Span]) -> list[str]:
    """The names of the spans that it lies in, from the innermost on; a parent that is missing is
    a KeyError.
    """
    parents = [
        reference["spanID"]
        for reference in span["references"]
        if reference["refType"] == "CHILD_OF"
    ]
    if not parents:
        return []
    parent = by_id[parents[0]]
    return [parent["operationName"], *names_above(parent, by_id)]


def checked(traces: list[list[Span]]) -> list[tuple[str, list[str]]]:
    """The name of each span and those above it, where Jaeger has nothing to complain of."""
    found = []
    for spans in traces:
        by_id = {span["spanID"]: span for span in spans}
        assert len(by_id) == len(spans)
        assert not [span["warnings"] for span in spans if span["warnings"]]
        assert not [span["operationName"] for span in spans if is_linked_alone(span)]
        found += [(span["operationName"], names_above(span, by_id)) for span in spans]
    return found


def is_linked_alone(span: Span) -> bool:
    """Whether it follows from others and is nobody's child.

    Of two references to the same span Jaeger keeps one: the link.
    """
    return {reference["refType"] for reference in span["references"]} == {"FOLLOWS_FROM"}


def wait_until_all_is_there() -> None:
    """Until Jaeger has confirmed as many spans as the Collector took in.

    What Jaeger shows can't be counted against that: a sender that heard too late that its batch
    was taken sends it again, which the Collector counts twice and Jaeger shows once, and programs
    of other tests may send to the same port.
    """
    wait_until(
        lambda: (
            counted_by_collector("exporter_sent") == counted_by_collector("receiver_accepted") > 0
        )
    )


def run_demo(folder: Path, environment: Mapping[str, str]) -> str:
    few_steps = ("--steps", "4", "--epoch-steps", "2", "--layers", "1")
    command = [sys.executable, str(EXAMPLES / "demo.py"), *few_steps]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=True,
    )
    return done.stdout


def ask_server(folder: Path, environment: Mapping[str, str]) -> None:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable,
        str(EXAMPLES / "serve.py"),
        "--port",
        str(port),
        "--train-steps",
        "2",
    ]
    with running(command, folder / "serve.log", environment) as server:
        wait_until_it_listens(server, port, folder / "serve.log")
        for _ in range(REQUESTS):
            with urlopen(
                f"http://127.0.0.1:{port}/write?prompt=owl&letters=2", timeout=PATIENCE_S
            ) as answer:
                assert json.load(answer)["text"].startswith("owl")


def test_jaeger_shows_what_the_demo_and_a_server_did(
    backends: None, tmp_path: Path, environment: dict[str, str]
) -> None:
    output = run_demo(tmp_path, environment)
    assert "Spans were sent to localhost:4317" in output
    assert "Not everything arrived" not in output
    ask_server(tmp_path, environment)
    wait_until_all_is_there()

    demo, server = "otel-recfn-demo", "otel-recfn-serve"
    spans = checked(traces_of(demo))
    assert [above for name, above in spans if name == "epoch"] == [[], []]
    assert [above for name, above in spans if name == "step"] == [["epoch"]] * 4
    trained = [
        above for name, above in spans if name.startswith("aten::addmm") and above[-1] == "epoch"
    ]
    assert trained
    assert all(above[-2] == "step" for above in trained)

    requests = traces_of(server)
    assert len(requests) == REQUESTS
    spans = checked(requests)
    assert [above for name, above in spans if name == "GET /write"] == [[]] * REQUESTS
    operators = [above for name, above in spans if name.startswith("aten::")]
    assert operators
    assert all(above[-1] == "GET /write" for above in operators)

    found = traces_of(demo, {"recfn.scope": "BACKWARD_FUNCTION"})
    assert found
    assert all(any(is_backward(span) for span in spans) for spans in found)


def is_backward(span: Span) -> bool:
    return any(
        tag["key"] == "recfn.scope" and tag["value"] == "BACKWARD_FUNCTION" for tag in span["tags"]
    )
