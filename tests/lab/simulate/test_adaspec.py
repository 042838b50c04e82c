"""Test that drafters stop and trim as AdaSpec has it, also where paths are asked for more."""

import pytest
from msgspec.structs import replace

from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.engine.step_costs import StepCosts
from app.request import Sampling
from app.state import NO_TREE, BatchEntry, CachedSequence, Guess
from lab.adaspec import AdaSpec
from lab.simulate.adaspec import AdaSpecGuesser
from lab.simulate.log import DrafterLog, Text
from lab.simulate.models import SimClock
from tests import fakes
from tests.fakes import draft_job

TOKENS = tuple(range(100, 120))
MOST = 8
FREE = StepCosts({1: 0.05, 4000: 0.05})  # rows cost nothing
DEAR = StepCosts({1: 0.001, 2: 0.002, 4000: 4.0})  # each as much as the first


def guesser(confidence: float, costs: StepCosts, token_s: float = 1e-3, most: int = MOST) -> AdaSpecGuesser:
    chains = tuple(
        tuple(Guess(token, confidence, 0, 0.0) for token in (*TOKENS[i:], *[0] * 8)[:8]) for i in range(len(TOKENS))
    )
    log = DrafterLog.model_construct(guesses=(chains,) * 64, token_s={64: token_s}, read_s=0.0, context_s=0.0)
    texts = [Text(domain="all", prompt_ids=(1,), tokens=TOKENS)] * 64
    return AdaSpecGuesser("one", texts, log, SimClock(), rule=AdaSpec(costs, most))


def works(count: int) -> list[BatchEntry]:
    sequences = (CachedSequence(f"{i}.0", [1, *TOKENS[:2]], Sampling(seed=0), "public") for i in range(count))
    return [BatchEntry(sequence, 2, [TOKENS[1]], NO_TREE, True) for sequence in sequences]


def drafted(own: AdaSpecGuesser, count: int = 1) -> list[int]:
    own._clock.now_s += 0.1  # verifying
    return [len(chain) for chain in own.guess(works(count), 8, 0.0)]


def test_free_rows_and_sure_drafts_are_drafted_to_the_end() -> None:
    own = guesser(0.99, FREE)
    assert drafted(own) == [8]
    assert own._clock.now_s == pytest.approx(0.1 + 8e-3)


def test_a_step_is_plain_where_the_mean_token_does_not_beat_none() -> None:
    own = guesser(0.2, DEAR)
    assert drafted(own) == [1] or drafted(own) == [0]  # the first one has no mean yet
    own._rule._sum, own._rule._count = 0.2, 1
    began_s = own._clock.now_s
    assert drafted(own) == [0] and own._clock.now_s == pytest.approx(began_s + 0.1)


def best_length(confidence: float, token_s: float) -> int:
    """Return the length of the most goodput: token k + 1 pays while its survival is above the goodput times a step."""

    def goodput(steps: int) -> float:
        return sum(confidence**i for i in range(steps + 1)) / (0.05 + steps * token_s)

    return max(range(9), key=goodput)


def test_drafting_stops_where_the_next_token_would_lower_goodput() -> None:
    confidence, token_s = 0.6, 5e-3
    own = guesser(confidence, FREE, token_s)
    own._rule._sum, own._rule._count = confidence, 1
    best = best_length(confidence, token_s)
    assert 0 < best < 8 and drafted(own) == [best]


def test_a_batch_is_trimmed_to_a_captured_size_where_goodput_does_not_fall() -> None:
    """Costs that rise in steps behind captured sizes: 3 sequences and 24 drafted tokens are 27 rows."""
    stairs = StepCosts({1: 0.05, 16: 0.05, 17: 0.2, 4000: 0.2})
    counts = drafted(guesser(0.7, stairs), 3)
    assert sum(counts) + 3 <= 16
    assert max(counts) - min(counts) <= 1


def round_of(own: AdaSpecGuesser, rooms: list[int], known: int) -> list[int]:
    """Count the tokens that a node drafts for sequences of `known` tokens, by the room that each has left."""
    own._clock.now_s += 0.1
    node = DrafterNode([ModelDrafter("one", own, 1000)], lambda _: None, "n")
    jobs = [draft_job(f"{i}.0", [1, *TOKENS[:known]], ("one",)) for i in range(len(rooms))]
    jobs = [replace(job, max_draft_tokens=room) for job, room in zip(jobs, rooms, strict=True)]
    found = {draft.request_id: len(draft.tokens) for draft in fakes.drafts_by(node, jobs)}
    return [found.get(f"{i}.0", 0) for i in range(len(rooms))]


def test_a_node_drafts_what_the_rule_says_and_no_more() -> None:
    confidence, token_s = 0.75, 5e-3
    own = guesser(confidence, FREE, token_s)
    own._rule._sum, own._rule._count = confidence, 1
    best = best_length(confidence, token_s)
    assert 0 < best < 6
    for known in (2, 5):
        began_s = own._clock.now_s
        assert round_of(own, [MOST], known) == [best]
        assert own._clock.now_s == pytest.approx(began_s + 0.1 + best * token_s)


def test_a_node_ends_a_round_in_which_nothing_pays() -> None:
    own = guesser(0.2, DEAR)
    own._rule._sum, own._rule._count = 0.2, 1
    assert round_of(own, [MOST, MOST], 2) == [0, 0]
    assert own._rule._count == 1 and own._clock.now_s == pytest.approx(0.1)


def test_a_sequence_trimmed_to_nothing_gets_nothing_more() -> None:
    """One token drafted of each of four sequences makes eight rows; the next smaller size has room for none."""
    own = guesser(0.3, StepCosts({1: 0.05, 4: 0.05, 5: 0.08, 4000: 0.08}), most=1)
    own._rule._sum, own._rule._count = 0.9, 1  # so that it drafts at all
    assert round_of(own, [MOST] * 4, 2) == [0] * 4
    assert own._rule._count == 5


def test_a_path_with_little_room_cuts_its_own_draft_alone() -> None:
    assert round_of(guesser(0.99, FREE), [2, MOST], 2) == [2, MOST]
