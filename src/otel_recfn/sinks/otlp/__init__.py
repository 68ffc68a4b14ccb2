"""Spans as OTLP, without the SDK's processors and exporters."""
