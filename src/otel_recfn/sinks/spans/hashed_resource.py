"""A provider's resource that remembers its hash.

Exporters group the spans of a batch by their resources, and the SDK's works out its hash, of a JSON text of all its attributes,
for every span. Ours is equal to the program's and has its hash, so both stand in one group.
"""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource


class HashedResource(Resource):
    """Another one's attributes and whatever else it has, with its hash.

    Args:
        known: the other one, which never changes.
    """

    def __init__(self, known: Resource) -> None:
        vars(self).update(vars(known))
        self._recfn_known, self._recfn_hash = known, hash(known)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._recfn_known or super().__eq__(other)

    def __hash__(self) -> int:
        return self._recfn_hash


def hashed(resource: Resource) -> Resource:
    """The resource with its hash remembered; itself where that can't be told to stand for it."""
    if type(resource) is not Resource:  # it may have another hash each time
        return resource
    try:
        made = HashedResource(resource)
        stands_for_it = Resource.__eq__(made, resource) and Resource.__hash__(made) == hash(made)
    except Exception:  # it isn't hashable: spans are made all the same
        return resource
    return made if stands_for_it else resource
