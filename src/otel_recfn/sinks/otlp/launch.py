"""What a launcher tells each of its processes of itself: torchrun's and SLURM's variables, as attributes of our resource."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource

from otel_recfn.support.process_role import LOCAL_RANK, RANK, WORLD_SIZE, number_of

NUMBERS = {"recfn.rank": RANK, "recfn.local_rank": LOCAL_RANK, "recfn.world_size": WORLD_SIZE}
"""Variables by attribute."""
JOB_ID, JOBS = "recfn.job_id", ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
NO_JOB = ("", "none")
"""What torchrun says where nobody gave a run an id."""


def with_launch(resource: Resource, environment: Mapping[str, str] | None = None) -> Resource:
    """The resource with what the launcher says and the resource doesn't; the same one where that is nothing."""
    found = os.environ if environment is None else environment
    told: dict[str, int | str | None] = {name: number_of(variables, found) for name, variables in NUMBERS.items()}
    told[JOB_ID] = next(filter(None, [found.get(each, "") for each in JOBS if found.get(each, "") not in NO_JOB]), None)
    known = {name: value for name, value in told.items() if value is not None and name not in resource.attributes}
    return Resource({**resource.attributes, **known}, resource.schema_url) if known else resource
