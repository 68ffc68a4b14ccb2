"""A tracer provider for a child that isn't forked and has none, though its parent has.

Spans that we export ourselves need no processors of a provider's, but its resource and its sampler.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider


def told_of(provider: Any) -> bytes | None:
    """What such a provider is made of; None where this one is none of the SDK's."""
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    try:
        resource = provider.resource
        return pickle.dumps((dict(resource.attributes), resource.schema_url, _pickled(getattr(provider, "sampler", None))))
    except Exception:  # of another kind of provider
        return None


def made_of(told: bytes) -> TracerProvider | None:
    """The provider, whose spans go nowhere by themselves; None where it can't be made."""
    try:
        attributes, schema_url, sampler = pickle.loads(told)
        return TracerProvider(_unpickled(sampler), Resource(attributes, schema_url), shutdown_on_exit=False)
    except Exception:
        return None


def _pickled(sampler: Any) -> bytes | None:
    with suppress(Exception):  # one of the program's; the child has the default
        return pickle.dumps(sampler)
    return None


def _unpickled(sampler: bytes | None) -> Any:
    with suppress(Exception):
        return pickle.loads(sampler) if sampler is not None else None
    return None
