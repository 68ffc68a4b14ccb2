"""Spans to OTLP without the SDK's processors and exporters."""
