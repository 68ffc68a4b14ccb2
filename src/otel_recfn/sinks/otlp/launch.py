"""What a launcher tells each of its processes of itself: torchrun's and SLURM's variables, as attributes of our resource."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource

VARIABLES = {
    "recfn.rank": ("RANK", "SLURM_PROCID"),
    "recfn.local_rank": ("LOCAL_RANK", "SLURM_LOCALID"),
    "recfn.world_size": ("WORLD_SIZE", "SLURM_NTASKS"),
    "recfn.job_id": ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"),
}
"""By attribute; the first of the variables that is set counts."""
MOST_DIGITS = 10
NO_JOB = ("", "none")
"""What torchrun says where nobody gave a run an id."""


def with_launch(resource: Resource, environment: Mapping[str, str] | None = None) -> Resource:
    """The resource with what the launcher says and the resource doesn't; the same one where that is nothing."""
    found = os.environ if environment is None else environment
    told = {name: _told(name, variables, found) for name, variables in VARIABLES.items() if name not in resource.attributes}
    known = {name: value for name, value in told.items() if value is not None}
    return Resource({**resource.attributes, **known}, resource.schema_url) if known else resource


def _told(name: str, variables: tuple[str, ...], environment: Mapping[str, str]) -> int | str | None:
    for variable in variables:
        text = environment.get(variable, "")
        if name == "recfn.job_id" and text not in NO_JOB:
            return text
        if name != "recfn.job_id" and text.isdecimal() and text.isascii() and len(text) < MOST_DIGITS:
            return int(text)
    return None
