"""The tracer provider of a child process that isn't forked, made of its parent's."""

from __future__ import annotations

import pickle
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_recfn.sinks.spans.provider import provider_inside
from otel_recfn.support.interruptions import ignoring_errors


def pickled_parts(provider: Any) -> bytes | None:
    """The parts from which a child that isn't forked makes a provider, if it has none; None if this
    is none of the SDK's.

    Spans that we export ourselves need no processors, but the resource and the sampler.
    """
    provider = provider_inside(provider)
    # Where it can't be pickled, the child has the default.
    for sampler in (getattr(provider, "sampler", None), None):
        with ignoring_errors():  # another kind of provider
            return pickle.dumps(
                (
                    dict(provider.resource.attributes),
                    provider.resource.schema_url,
                    pickle.dumps(sampler),
                )
            )
    return None


def provider_from(parts: bytes) -> TracerProvider | None:
    """The child's provider; None if it can't be made."""
    try:
        attributes, schema_url, pickled = pickle.loads(parts)
        sampler = None
        with ignoring_errors():  # the child may not have its class
            sampler = pickle.loads(pickled)
        return TracerProvider(sampler, Resource(attributes, schema_url), shutdown_on_exit=False)
    except Exception:
        return None
