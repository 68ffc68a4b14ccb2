"""The figures of a generation: a unit that is sent in parts says each token once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_recfn.model.generation import GENERATION, Generation, GenerationStart

START = GenerationStart(prefill_id=7, first_token_ns=1_500_000_000, input_tokens=5, batch_size=1)
OUTPUT_TOKENS = ["gen_ai.usage.output_tokens", GENERATION + "output_tokens"]


@given(tokens=st.integers(2, 20), data=st.data())
def test_output_tokens_of_all_parts_are_those_of_the_generation(
    tokens: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(2, tokens)))
    generation = Generation()
    sums = dict.fromkeys(OUTPUT_TOKENS, 0)
    for number in range(2, tokens + 1):
        end_ns = 1_500_000_000 + number
        generation.add(number, end_ns, START if number == 2 else None)
        if number in cuts or number == tokens:
            attributes = generation.attributes(1_000_000_000)
            for name in OUTPUT_TOKENS:
                sums[name] += attributes.get(name, 0)
            generation = generation.following_part()
    assert sums == dict.fromkeys(OUTPUT_TOKENS, tokens)


def test_the_conventions_count_seconds() -> None:
    generation = Generation()
    generation.add(2, 1_600_000_000, START)
    found = generation.attributes(1_000_000_000)
    assert found["gen_ai.response.time_to_first_chunk"] == 0.5
    assert found["gen_ai.usage.input_tokens"] == 5


def test_a_part_has_the_batch_size_of_its_own_generations() -> None:
    batch = Generation()
    batch.add(2, 1_600_000_000, START._replace(batch_size=2))
    part = batch.following_part()
    part.add(2, 1_700_000_000, START)
    found = part.attributes(1_000_000_000)
    assert found[GENERATION + "batch_size"] == 1
    # Tokens of the batch may be among the part's.
    assert "gen_ai.usage.output_tokens" not in found
