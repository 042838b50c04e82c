"""Test that drafters vote, that weights follow what the target says, and that the length climbs and turns."""

from msgspec.structs import replace

from app.engine.step_costs import StepCosts
from app.messages import TreeMessage
from app.speculation.draft_costs import DraftCosts
from lab.simulate.log import Text
from lab.testbeds.arms import ARMS
from lab.testbeds.play import loop, play, tuned
from lab.testbeds.smurfs import FIRST, MOST, PAUSE, TRIED, ClimbingLength, Vote
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, read_world
from tests.app.speculation.candidates import likely

PROMPT, TOKENS = (1, 2), (10, 11, 12, 13)
TEXTS = [Text(domain="all", prompt_ids=PROMPT, tokens=TOKENS)]
FREE = StepCosts({1: 0.05, 4000: 0.05})  # rows cost nothing
DEAR = StepCosts({1: 0.001, 2: 0.002, 4000: 4.0})  # each as much as the first


def union(base: int) -> TreeMessage:
    """Return three drafts: `a` and `b` say 10, and part after it; `c` says 20, 21, 22."""
    return TreeMessage(
        request_id="0.0",
        base=base,
        tokens=(10, 20, 11, 12, 21, 22),
        parents=(0, 0, 1, 1, 2, 5),
        survival=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
        proposers=(("a", "b"), ("c",), ("a",), ("b",), ("c",), ("c",)),
    )


def test_the_path_of_the_most_weight_is_kept_alone() -> None:
    kept = Vote(TEXTS)(union(len(PROMPT)))
    assert kept.tokens == (10, 11) and kept.parents == (0, 1) and kept.survival == (0.9, 0.7)
    assert kept.proposers == (("a", "b"), ("a",))


def test_a_drafter_that_is_right_more_often_outvotes_two_that_agree() -> None:
    vote = Vote([Text(domain="all", prompt_ids=PROMPT, tokens=(20,) * 40)])  # `c` is right in each round
    paths = [vote(union(len(PROMPT) + round_)).tokens for round_ in range(6)]
    assert paths[0] == (10, 11) and paths[-1] == (20, 21, 22)


def test_it_learns_from_the_token_that_its_drafts_were_for() -> None:
    vote = Vote([Text(domain="all", prompt_ids=PROMPT, tokens=(20, *[10] * 8))])
    paths = [vote(union(len(PROMPT) + round_)).tokens[0] for round_ in range(6)]
    assert paths[:2] == [10, 20] and paths[3:] == [10] * 3, "`c` is right once, and then `a` and `b` are"


def test_nothing_is_learnt_from_a_round_that_was_not_verified() -> None:
    vote = Vote(TEXTS)
    for _ in range(20):
        assert vote(union(len(PROMPT))).tokens == (10, 11)
    other = Vote([Text(domain="all", prompt_ids=PROMPT, tokens=(20,) * 4)])
    for _ in range(20):
        assert other(union(len(PROMPT))).tokens == (10, 11), "though `c` is right"


def test_a_tree_without_nodes_stays_so() -> None:
    empty = replace(union(2), tokens=(), parents=(), survival=(), proposers=())
    assert Vote(TEXTS)(empty).tokens == ()


def climb(costs: StepCosts, committed: int) -> list[int]:
    """Return the lengths that 400 decisions for one request come to, whose rounds commit so many tokens at most."""
    own, found, last = ClimbingLength(), [], 0
    for _ in range(400):
        tokens = {"0.0": min(committed, 1 + last)} if last else {}
        (last,) = own.depths({"0.0": likely(4, limit=MOST)}, costs, DraftCosts(), 0.0, tokens)
        found.append(last)
    return found


def test_the_length_stays_for_a_pause_and_a_trial() -> None:
    assert climb(FREE, MOST + 1)[: PAUSE + TRIED - 1] == [FIRST] * (PAUSE + TRIED - 1)


def test_the_length_climbs_to_its_bound_where_longer_drafts_commit_more_and_cost_nothing() -> None:
    assert max(climb(FREE, MOST + 1)[:100]) == MOST


def test_the_length_stays_near_the_best_where_rows_cost() -> None:
    """Two tokens a round at most: one drafted token is best, and it leaves that by one step up and back."""
    assert max(climb(DEAR, 2)[200:]) <= 3


def test_a_length_stays_within_the_room_of_each_request() -> None:
    own = ClimbingLength()
    rooms = {"0.0": likely(4, limit=1), "1.0": likely(4, limit=MOST)}
    assert own.depths(rooms, FREE, DraftCosts(), 0.0, {}) == [1, FIRST]


def test_the_arm_runs_in_both_papers_worlds() -> None:
    for paper, name in (("cosine", "cosine-70b"), ("faser", "faser-32b")):
        world = read_world(FOLDER / f"{name}.json")
        arm = next(one for one in ARMS[paper](world) if one.system == "smurfs")
        log, other = (made(world, [Wanted(world.domains[0], 64, 48)] * 4, seed) for seed in (0, 1))
        found = play(world, tuned(world, arm, other, loop(2, 1, 1), 1), log, loop(2, 1, 1), 0)
        assert found.tokens_a_round > 1.3 and found.drafted <= MOST


def test_halves_are_taken_where_they_are_faster_on_other_data() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    arm = next(one for one in ARMS["faser"](world) if one.system == "smurfs")
    other = made(world, [Wanted(world.domains[0], 64, 48)] * 8, 1)
    load, (ways,) = loop(4, 1, 1), arm.axes
    tried = [arm.at([way]) for way in ways]
    paces = {one.chosen: play(world, one, other, load, 1).tokens_per_s for one in tried}
    assert len(set(paces.values())) == len(ways) > 2
    best = tuned(world, arm, other, load, 1)
    assert best.chosen == max(paces, key=paces.__getitem__) == play(world, best, other, load, 1).chosen
