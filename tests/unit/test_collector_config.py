"""The Collector's configuration and the compose file: what docs/collector.md promises is defined, and wired."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def settings(file: str) -> set[str]:
    """``path.to.key=value`` for each scalar and each item of a list. Reads the YAML that these files are written in."""
    found: set[str] = set()
    path: list[tuple[int, str]] = []
    for line in (ROOT / file).read_text().splitlines():
        text = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if not text.strip():
            continue
        indent, (key, value) = len(text) - len(text.lstrip()), _parts(text.strip())
        path = [(depth, name) for depth, name in path if depth < indent] + ([(indent, key)] if key else [])
        found |= {f"{'.'.join(name for _, name in path)}={item}" for item in _items(value)}
    return found


def _parts(text: str) -> tuple[str, str]:
    if text.startswith("- "):
        return "", text[2:]
    key, value = re.fullmatch(r"([\w/-]+):(?:\s+(.*))?", text).groups()  # type: ignore[union-attr]
    return key, value or ""


def _items(value: str) -> list[str]:
    inside = value[1:-1].split(",") if value.startswith("[") else [value]
    return [item.strip().strip('"') for item in inside if item]


def test_the_collector_takes_otlp_over_grpc_and_http() -> None:
    protocols = "receivers.otlp.protocols"
    assert {f"{protocols}.grpc.endpoint=0.0.0.0:4317", f"{protocols}.http.endpoint=0.0.0.0:4318"} <= settings(
        "collector-config.yaml"
    )


def test_its_memory_is_limited_and_its_batches_are() -> None:
    config = dict(setting.split("=", 1) for setting in settings("collector-config.yaml"))
    assert int(config["processors.memory_limiter.limit_mib"]) > int(config["processors.memory_limiter.spike_limit_mib"]) > 0
    assert config["processors.memory_limiter.check_interval"]
    assert int(config["processors.batch.send_batch_max_size"]) >= int(config["processors.batch.send_batch_size"]) > 0


def test_it_exports_to_jaeger() -> None:
    config = settings("collector-config.yaml")
    assert "exporters.otlp/jaeger.endpoint=${env:JAEGER_ENDPOINT:-localhost:14317}" in config
    assert "exporters.otlp/jaeger.tls.insecure=true" in config


def test_the_pipeline_uses_all_of_them_the_limiter_first() -> None:
    pipeline = "service.pipelines.traces"
    config = settings("collector-config.yaml")
    used = {setting.split("=")[1] for setting in config if setting.startswith(pipeline)}
    defined = {setting.split(".")[1] for setting in config if setting.startswith(("receivers.", "processors.", "exporters."))}
    assert used == defined == {"otlp", "memory_limiter", "batch", "otlp/jaeger"}
    assert f"{pipeline}.receivers=otlp" in config
    assert f"{pipeline}.exporters=otlp/jaeger" in config
    assert "processors: [memory_limiter, batch]" in (ROOT / "collector-config.yaml").read_text()


def test_compose_starts_both_with_this_configuration() -> None:
    compose = settings("docker-compose.yaml")
    collector = "services.collector"
    [mount] = [setting for setting in compose if setting.startswith(f"{collector}.volumes=./collector-config.yaml:")]
    inside = mount.split(":")[1]
    assert f"{collector}.command=--config={inside}" in compose
    assert {f"{collector}.ports=127.0.0.1:{port}:{port}" for port in (4317, 4318)} <= compose
    assert "services.jaeger.ports=127.0.0.1:16686:16686" in compose
    assert f"{collector}.environment.JAEGER_ENDPOINT=jaeger:4317" in compose


def test_the_page_names_these_ports() -> None:
    page = (ROOT / "docs" / "collector.md").read_text()
    assert "docker compose up" in page
    assert {port for port in ("4317", "4318", "16686") if port in page} == {"4317", "4318", "16686"}
    assert "receivers.otlp.protocols.grpc.endpoint=localhost:14317" in page
