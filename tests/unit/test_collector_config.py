"""The Collector's configuration and the compose file: what docs/collector.md promises is defined, and wired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.one_python
ROOT = Path(__file__).parents[2]


def read(file: str) -> Any:
    return yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))


def test_the_pipeline_takes_otlp_limits_its_memory_first_and_exports_to_jaeger() -> None:
    config = read("collector-config.yaml")
    assert config["service"]["pipelines"]["traces"] == {
        "receivers": ["otlp"],
        "processors": ["memory_limiter", "batch"],
        "exporters": ["otlp/jaeger"],
    }
    protocols = config["receivers"]["otlp"]["protocols"]
    assert {name: each["endpoint"] for name, each in protocols.items()} == {"grpc": "0.0.0.0:4317", "http": "0.0.0.0:4318"}
    limiter, batch = config["processors"]["memory_limiter"], config["processors"]["batch"]
    assert limiter["limit_mib"] > limiter["spike_limit_mib"] > 0
    assert batch["send_batch_max_size"] >= batch["send_batch_size"] > 0
    jaeger = config["exporters"]["otlp/jaeger"]
    assert jaeger == {"endpoint": "${env:JAEGER_ENDPOINT:-localhost:14317}", "tls": {"insecure": True}}


def test_compose_starts_both_with_this_configuration() -> None:
    services = read("docker-compose.yaml")["services"]
    collector = services["collector"]
    [mount] = collector["volumes"]
    outside, inside, _ = mount.split(":")
    assert (outside, collector["command"]) == ("./collector-config.yaml", [f"--config={inside}"])
    assert collector["ports"] == ["127.0.0.1:4317:4317", "127.0.0.1:4318:4318"]
    assert collector["environment"] == {"JAEGER_ENDPOINT": "jaeger:4317"}
    assert services["jaeger"]["ports"] == ["127.0.0.1:16686:16686"]


def test_the_page_names_these_ports() -> None:
    page = (ROOT / "docs" / "collector.md").read_text(encoding="utf-8")
    assert all(port in page for port in ("4317", "4318", "16686", "receivers.otlp.protocols.grpc.endpoint=localhost:14317"))
