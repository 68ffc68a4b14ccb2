"""Which calls of a model decode, chainsst the rule as it is written down."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.pytorch.generation import Chains, Inputs
from otel_recfn.support.foreign import WeakIdentityMap

pytestmark = pytest.mark.one_python


class Module:
    """Stands for one of PyTorch's."""


call = st.tuples(
    st.sampled_from(["model", "model", "model", "other"]), st.integers(1, 2), st.integers(1, 6)
)
steps = st.sampled_from([None, None, None, 1, 0])
"""How much longer the next call's input is; None: whatever comes, or one token."""


def lengths_of(first: int, growth: list[int | None]) -> list[int]:
    found = [first]
    for more in growth:
        found.append(1 if more is None else found[-1] + more)
    return found


generations = st.builds(
    lambda first, growth: [("model", 2, length) for length in lengths_of(first, growth)],
    st.integers(1, 6),
    st.lists(steps, max_size=8),
)
programs = st.lists(call, max_size=6) | st.lists(
    generations | st.lists(call, max_size=2), max_size=3
).map(lambda parts: [one for part in parts for one in part])


def decoding(calls: list[tuple[str, int, int]]) -> list[bool]:
    """By definition: looks at all calls of the generation that a call may belong to."""
    found: list[bool] = []
    start = 0
    growing = set[str]()
    for at, (name, batch, length) in enumerate(calls):
        before = calls[at - 1]
        first = calls[start]
        lengths = [one[2] for one in calls[start:at]]
        same = at > start and (name, batch) == first[:2]
        grew = same and length == before[2] + 1
        one_token = same and length == 1 < first[2] and lengths[-1] in (1, first[2])
        stays = same and length == before[2] and found[-1]
        if not (grew or one_token or stays):
            start = at
            known = name in growing
            found.append(False)
            continue
        more = [
            one for one in zip(lengths, [*lengths[1:], length], strict=True) if one[1] == one[0] + 1
        ]
        enough = len(more) + known > 1
        if enough:
            growing.add(name)
        found.append(one_token or enough or any(found[start:at]))
    return found


@given(calls=programs)
def test_the_calls_that_decode(calls: list[tuple[str, int, int]]) -> None:
    chains = Chains(WeakIdentityMap())
    modules = defaultdict[str, Module](Module)
    seen = []
    for name, batch, length in calls:
        chain = chains.begin(modules[name], name, Inputs([(batch, length)], True), lambda _: False)
        assert chain is not None
        seen.append(chain.decodes)
    assert seen == decoding(calls)


def test_what_may_be_a_part_of_training_or_takes_no_tokens_is_none() -> None:
    assert (
        Chains(WeakIdentityMap()).begin(Module(), "model", Inputs([(2, 3)], True), lambda _: True)
        is None
    )
    assert (
        Chains(WeakIdentityMap()).begin(Module(), "model", Inputs([(2, 3)], False), lambda _: False)
        is None
    )


def test_a_model_that_has_grown_in_one_thread_is_known_in_all() -> None:
    growing: WeakIdentityMap[bool] = WeakIdentityMap()
    model = Module()

    def decoding(chains: Chains) -> list[bool]:
        found = []
        for length in (3, 4, 5, 6):
            chain = chains.begin(model, "model", Inputs([(1, length)], True), lambda _: False)
            found.append(chain is not None and chain.decodes)
        return found

    assert decoding(Chains(growing)) == [False, False, True, True]
    assert decoding(Chains(growing)) == [False, True, True, True]
