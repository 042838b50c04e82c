"""Test that a live drafter ends its drafts as the rule has it, with the tokens that its model drafts in one call."""

from collections.abc import Mapping

import pytest

from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.step_costs import StepCosts
from app.request import Sampling
from lab.adaspec import MOST, AdaSpec
from lab.deployed.adaspec_drafter import AdaSpecGuesser
from tests import fakes
from tests.fakes import VOCAB
from tests.records import draft_job

PROMPT = [5, 9, 2, 7]
FREE = StepCosts({1: 1e9, 4000: 1e9})  # a row or a guess costs nothing beside it
DEAR = StepCosts({1: 1e-9, 2: 10.0, 4000: 40000.0})
GREEDY = Sampling()


def model() -> ModelGuesser:
    return ModelGuesser(choose_forward(fakes.tiny()), None, kv_bytes=2**20, page_tokens=16)


def drafted(
    guesser: object, rounds: list[dict[str, list[int]]], sampling: Sampling = GREEDY, rooms: Mapping[str, int] = {}
) -> list[dict[str, list[int]]]:
    """Return the chains that a node drafts for these requests behind these contexts, round after round."""
    node = DrafterNode([ModelDrafter("one", guesser, 1000)], lambda _: None, "n")  # type: ignore[arg-type]
    found = []
    for contexts in rounds:
        jobs = [
            draft_job(
                request, tokens, ("one",), max_draft_tokens=rooms.get(request, MOST), sampling=sampling,
                least_survival=0.0, has_leaves=False,
            )
            for request, tokens in contexts.items()
        ]  # fmt: skip
        found.append({draft.request_id: [*draft.tokens] for draft in fakes.drafts_by(node, jobs)})
    return found


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.8, seed=3)])
def test_where_every_token_pays_the_draft_is_the_models_own(sampling: Sampling) -> None:
    guesser = AdaSpecGuesser(model(), AdaSpec(FREE))
    ((chain,),) = (own.values() for own in drafted(model(), [{"a": PROMPT}], sampling))
    behind = [*PROMPT, *chain[:3], (chain[3] + 1) % VOCAB]  # three right, and the target's own
    rounds = [{"a": PROMPT}, {"a": behind, "b": [3, 1]}, {"a": [*behind, 4], "b": [3, 1, 8]}]
    whole = drafted(guesser, rounds, sampling)
    assert whole == drafted(model(), rounds, sampling)
    assert [[len(chain) for chain in own.values()] for own in whole] == [[MOST], [MOST] * 2, [MOST] * 2]


def test_where_none_pays_nothing_is_drafted() -> None:
    rounds = [{"a": PROMPT}, {"a": [*PROMPT, 3]}]
    found = drafted(AdaSpecGuesser(model(), AdaSpec(DEAR)), rounds)
    assert [chain for own in found for chain in own.values() if chain] == []


def test_a_verdict_that_ends_with_the_last_drafted_token_begins_a_round() -> None:
    guesser = AdaSpecGuesser(model(), AdaSpec(FREE, most=2))
    ((chain,),) = (own.values() for own in drafted(guesser, [{"a": PROMPT}]))
    behind = [*PROMPT, *chain]
    for context in (behind, [*behind, 3]):
        found = drafted(guesser, [{"a": PROMPT}, {"a": context}])
        (fresh,) = drafted(model(), [{"a": context}])
        assert [len(own["a"]) for own in found] == [2, 2]
        assert found[1]["a"] == fresh["a"][:2], "what was not read is not taken for cached"


def test_tokens_of_a_round_without_draft_are_read_by_the_next_one() -> None:
    guesser = AdaSpecGuesser(model(), AdaSpec(DEAR))
    node = DrafterNode([ModelDrafter("one", guesser, 1000)], lambda _: None, "n")  # type: ignore[arg-type]
    text = [*PROMPT, *range(20, 50)]
    for end in range(4, 30):
        fakes.drafts_by(node, [draft_job("a", text[:end], ("one",), max_draft_tokens=MOST, has_leaves=False)])
    guesser._rule = AdaSpec(FREE)
    job = draft_job("a", text, ("one",), max_draft_tokens=MOST, least_survival=0.0, has_leaves=False)
    (draft,) = fakes.drafts_by(node, [job])
    (fresh,) = drafted(model(), [{"a": text}])
    assert [*draft.tokens] == fresh["a"]


def test_a_draft_may_go_over_a_pages_end_whatever_room_is_left() -> None:
    """The model drafts on for the batch, and what a sequence has no room for is cut."""
    prompt = [i % VOCAB for i in range(1, 17)]
    guesser = AdaSpecGuesser(model(), AdaSpec(FREE))
    (found,) = drafted(guesser, [{"a": prompt, "b": PROMPT}], rooms={"a": 1})
    assert [len(found[request]) for request in ("a", "b")] == [1, MOST]
