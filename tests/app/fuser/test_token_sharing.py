"""Test that drafters on several nodes guess each token together, whatever mail is late, lost, doubled or a lie."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.drafter.draft_kv import DraftKV
from app.drafter.shared_paths import SharedPaths
from app.drafter.token_fusion import TokenFusion
from app.fuser.early_mail import MAX_EARLY, MAX_EARLY_EACH
from app.fuser.fuser import Fuser
from app.fuser.token_sharing import LEAST_WAIT_S, TokenSharing
from app.messages import Draft, DraftJob, SharedPath, TokenGuess
from app.state import Guess
from tests.app.drafter.scripts import TOKENS, chain, context, drafts_of, erratic, steady
from tests.fakes import VOCAB, ScriptedGuesser, draft_job


def job_for(tokens: list[int], names: tuple[str, ...], depth: int = 4, due_s: float = 9.0) -> DraftJob:
    job = draft_job("r", tokens, names, due_s=due_s)
    return replace(job, sharing=tuple(f"draft:{name}" for name in names), max_draft_tokens=depth)


def guess_of(drafter: str, token: int, confidence: float = 0.5, step: int = 0, base: int = 2) -> TokenGuess:
    return TokenGuess(
        request_id="r",
        base=base,
        step=step,
        drafter=drafter,
        token=token,
        confidence=confidence,
        second=0,
        second_confidence=0.0,
    )


class Cluster:
    """A drafter on each node, and the fuser's side of their shared paths, with mail between them."""

    def __init__(self, models: dict[str, ScriptedGuesser]) -> None:
        self.nodes = {f"draft:{name}": SharedPaths([DraftKV(name, model, 100)]) for name, model in models.items()}
        self.sharing = TokenSharing(VOCAB)
        self.now_s = 0.0

    def start(self, job: DraftJob, tokens: list[int]) -> None:
        self.sharing.open(job, job.drafters, self.now_s)
        for box in job.sharing:
            self.nodes[box].start(context(tokens, job.max_draft_tokens), [box.removeprefix("draft:")])

    def draft(self, job: DraftJob, tokens: list[int], random: Random) -> list[Draft]:
        """Run a round, mail of each step in any order and some of it twice."""
        self.start(job, tokens)
        while not self.sharing.is_done(job):
            guesses = [guess for node in self.nodes.values() for guess in node.guess()]
            self.sharing.receive(random.sample(guesses * 2, 2 * len(guesses)), self.now_s)
            for box, path in self.sharing.advance(self.now_s):
                for _ in range(random.randint(1, 2)):
                    self.nodes[box].receive(path)
        return self.sharing.close(job)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 8), st.integers(0, 99), st.data())
def test_nodes_draft_as_one_process_would(count, seed, data):
    """Round after round, with right, half right and wrong paths behind, and drafters that are not asked each time."""
    names = [f"m{i}" for i in range(count)]
    cluster = Cluster({name: erratic(seed + i) for i, name in enumerate(names)})
    tokens = list(TOKENS)
    for _ in range(data.draw(st.integers(1, 5))):
        asked = tuple(sorted(data.draw(st.sets(st.sampled_from(names), min_size=2))))
        depth = data.draw(st.integers(1, 5))
        fresh = {name: DraftKV(name, erratic(seed + i), 100) for i, name in enumerate(names)}
        alone = TokenFusion(fresh.values())
        expected = drafts_of(alone, [(context(tokens, depth), asked)])
        assert cluster.draft(job_for(tokens, asked, depth), tokens, Random(data.draw(st.integers()))) == expected
        right = data.draw(st.sampled_from([[], chain(expected[0])[:1], chain(expected[0])]))
        tokens = [*tokens, *right, data.draw(st.integers(0, 4))]


def test_a_node_reads_each_shared_token_once():
    models = {"a": steady(1, 0.9), "b": steady(3, 0.5), "c": steady(5, 0.4)}
    Cluster(models).draft(job_for(TOKENS, ("a", "b", "c")), TOKENS, Random(1))
    assert {model.rows for model in models.values()} == {len(TOKENS) + 3}


def test_a_late_drafter_is_left_behind_and_comes_back():
    one = TokenSharing(VOCAB)
    one.open(job_for([1, 1], ("a", "b")), ("a", "b"), 0.0)
    one.receive([guess_of("a", 3)], 0.5)
    assert one.advance(0.6) == [] and one.wait_s(0.6) == pytest.approx(0.4), "as long again as the first one took"
    assert [path.tokens for _, path in one.advance(1.0)] == [(3,), (3,)], "both nodes go on from it"
    one.receive([guess_of("b", 7, 0.9)], 1.1)  # of the step that is over
    one.receive([guess_of("a", 4, step=1)], 1.2)
    assert [path.tokens for _, path in one.advance(1.2)] == [(3, 4)] * 2, "nothing waits for it now"
    one.receive([guess_of("b", 8, 0.9, step=2), guess_of("a", 5, step=2)], 1.3)
    assert [path.tokens for _, path in one.advance(1.3)] == [(3, 4, 8)] * 2, "in time it counts again"
    one.receive([guess_of("a", 6, step=3)], 1.31)
    assert one.advance(1.31) == [], "and is waited for"
    assert one.advance(1.33) == [] and one.is_done(job_for([1, 1], ("a", "b")))


def test_a_dead_drafter_costs_one_wait_a_round():
    cluster = Cluster({"a": steady(1, 0.9), "b": steady(2, 0.9)})
    job = job_for(TOKENS, ("a", "b"))
    cluster.start(job, TOKENS)
    waits = 0
    while not cluster.sharing.is_done(job):
        cluster.sharing.receive(cluster.nodes["draft:a"].guess(), cluster.now_s)
        found = cluster.sharing.advance(cluster.now_s)
        if not found and not cluster.sharing.is_done(job):
            waits += 1
            wait_s = cluster.sharing.wait_s(cluster.now_s)
            assert wait_s is not None
            cluster.now_s += wait_s
            found = cluster.sharing.advance(cluster.now_s)
        for box, path in found:
            cluster.nodes[box].receive(path)
    (draft,) = cluster.sharing.close(job)
    assert waits == 1 and (draft.drafter, draft.tokens) == ("a", (6, 7, 8, 9))


def test_all_dead_end_with_the_round():
    fuser = Fuser([], VOCAB, lambda _: None)
    fuser.expect([job_for([1, 1], ("a", "b"))], 0.0)
    assert fuser.share([], 1.0) == [] and fuser.collect(1.0) == [] and fuser.wait_s(1.0) == 8.0
    ((_, tree),) = fuser.collect(9.0)
    assert tree.tokens == ()


def test_a_round_that_is_due_has_the_tokens_chosen_so_far():
    fuser = Fuser([], VOCAB, lambda _: None)
    fuser.expect([job_for([1, 1], ("a", "b"))], 0.0)
    (first, second) = fuser.share([guess_of("a", 3), guess_of("b", 4, 0.4)], 1.0)
    assert (first[0], second[0]) == ("draft:a", "draft:b") and first[1] == second[1]
    ((_, tree),) = fuser.collect(9.0)
    assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(3, ("a",)), (4, ("b",))]
    assert fuser.share([guess_of("a", 3, step=1), guess_of("b", 4, step=1)], 9.1) == [], "the round is over"


def test_no_round_waits_for_a_draft_of_those_that_share():
    fuser = Fuser([], VOCAB, lambda _: None)
    fuser.expect([job_for([1, 1], ("a", "b"), depth=1)], 0.0)
    assert fuser.share([guess_of("a", 3), guess_of("b", 3)], 1.0) == []
    ((_, tree),) = fuser.collect(1.0)
    assert tree.tokens == (3,) and set(tree.proposers[0]) == {"a", "b"}


def test_guesses_that_overtake_their_job_count():
    one = TokenSharing(VOCAB)
    one.receive([guess_of("a", 3), guess_of("b", 4)], 0.0)
    one.open(job_for([1, 1], ("a", "b")), ("a", "b"), 0.1)
    assert len(one.advance(0.1)) == 2


def test_guesses_of_unknown_rounds_take_little_memory():
    one = TokenSharing(VOCAB)
    one.receive([guess_of("a", 3, base=base) for base in range(1, MAX_EARLY + 5)], 0.0)
    one.receive([guess_of(f"a{i}", 3, base=MAX_EARLY) for i in range(MAX_EARLY_EACH + 5)], 0.0)
    assert len(one._early) == MAX_EARLY and len(one._early._rounds["r", MAX_EARLY]) == MAX_EARLY_EACH


NOT_A_NUMBER = float("nan")
LIES: list[Callable[[TokenGuess], TokenGuess]] = [
    lambda guess: replace(guess, token=VOCAB),
    lambda guess: replace(guess, token=-1),
    lambda guess: replace(guess, second=10**9),
    lambda guess: replace(guess, confidence=NOT_A_NUMBER),
    lambda guess: replace(guess, confidence=2.0),
    lambda guess: replace(guess, second_confidence=-0.1),
    lambda guess: replace(guess, drafter="unknown"),
    lambda guess: replace(guess, step=3),
    lambda guess: replace(guess, step=-1),
]


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_node_leaves_the_others_drafting(lie):
    one = TokenSharing(VOCAB)
    one.open(job_for([1, 1], ("a", "b"), depth=1), ("a", "b"), 0.0)
    one.receive([lie(guess_of("b", 4, 0.9)), guess_of("a", 3)], 0.0)
    one.advance(LEAST_WAIT_S)
    (draft,) = one.close(job_for([1, 1], ("a", "b"), depth=1))
    assert (draft.drafter, draft.tokens) == ("a", (3,))


def test_an_older_or_foreign_path_moves_no_node():
    model = ScriptedGuesser(lambda read: Guess(read[-1] + 1, 0.9, 0, 0.0))
    node = SharedPaths([DraftKV("a", model, 100)])
    node.receive(SharedPath(request_id="r", base=5, tokens=(1,), survival=1.0))
    assert node.guess() == []
    node.start(context(), ["a"])
    assert [guess.step for guess in node.guess()] == [0]
    node.receive(SharedPath(request_id="r", base=4, tokens=(1,), survival=1.0))
    assert node.guess() == []
    node.receive(SharedPath(request_id="r", base=5, tokens=(7, 9), survival=0.5))
    assert [(guess.step, guess.token) for guess in node.guess()] == [(2, 10)], "steps it missed are not guessed"
    node.receive(SharedPath(request_id="r", base=5, tokens=(7,), survival=0.9))
    assert node.guess() == []
    node.receive(SharedPath(request_id="r", base=5, tokens=(7, 9, 1), survival=0.01))
    assert node.guess() == [], "too unlikely to go on"


def test_a_later_job_drops_the_path_of_the_one_before():
    fuser = Fuser([], VOCAB, lambda _: None)
    fuser.expect([job_for([1, 1], ("a", "b"))], 0.0)
    fuser.share([guess_of("a", 3)], 0.0)
    fuser.expect([job_for([1, 1, 5], ("a", "b"))], 0.1)
    assert fuser.share([guess_of("b", 3)], 0.1) == [] and fuser.wait_s(0.1) == pytest.approx(8.9)
    fuser.expect([draft_job("r", [1, 1, 5, 6], is_last=True)], 0.2)
    assert fuser.wait_s(0.2) is None and fuser.collect(99.0) == []
