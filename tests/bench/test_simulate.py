"""The simulation of drafters and verifiers on machines of their own, over a small log made by hand."""

import json

import pytest

from app.stages.draft.registry import RESIDENT
from bench.simulate import outcomes_of, policies
from bench.simulate_events import Setting, simulate
from bench.simulate_log import DEPTH, DrafterLog, Guess, Log, Text
from bench.simulate_policies import Policy, tree_of

STEP_S, TOKEN_S = 0.05, 0.001
COSTS = json.dumps({"points": [[1, STEP_S], [64, 2 * STEP_S]], "ratio": 1.0, "fork_s": 0.0})


def chain(tokens: tuple[int, ...], confidence: float) -> Guess:
    return Guess(tokens=tokens, parents=tuple(range(len(tokens))), confidences=(confidence,) * len(tokens))


def expert(texts: list[Text], domain: str, confidence: float = 0.9) -> DrafterLog:
    """Right in its domain, wrong elsewhere and less sure of it."""
    guesses = tuple(
        tuple(
            chain(text.tokens[i : i + DEPTH], confidence)
            if text.domain == domain
            else chain((999,) * DEPTH, confidence / 3)
            for i in range(len(text.tokens))
        )
        for text in texts
    )
    return DrafterLog(guesses=guesses, token_s={1: TOKEN_S, 8: 2 * TOKEN_S})


@pytest.fixture
def log() -> Log:
    texts = [
        Text(domain=domain, prompt_ids=(1,), tokens=tuple(range(100 * i, 100 * i + 40)))
        for i, domain in enumerate(("code", "prose") * 4, start=1)
    ]
    drafters = {"coder": expert(texts, "code"), "writer": expert(texts, "prose")}
    nothing = tuple(tuple(Guess() for _ in text.tokens) for text in texts)
    return Log(
        costs=COSTS, texts=tuple(texts), drafters=drafters | dict.fromkeys(RESIDENT, DrafterLog(guesses=nothing))
    )


def test_without_drafts_every_token_is_a_step(log: Log) -> None:
    found = simulate(log, Policy("off", (), speculates=False), Setting(streams=1))
    assert found.accepted_length == 1.0
    assert found.tokens_per_s == pytest.approx(1.0 / STEP_S)
    assert found.verifier_busy == pytest.approx(1.0)


def test_a_chain_costs_its_hops_its_tokens_and_its_rows(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    found = simulate(only, Policy("", ("coder",), length=3), Setting(streams=1, hop_s=0.004))
    rounds = 10  # 39 tokens after the first, four a round; the last one asks for what there is room for
    assert found.accepted_length == pytest.approx(3.9)
    step_s = STEP_S * (1 + 3 / 63)
    assert found.seconds == pytest.approx(rounds * (2 * 0.004 + 3 * TOKEN_S + step_s), rel=0.01)


def test_the_same_seed_gives_the_same_figures(log: Log) -> None:
    for make in policies(("coder", "writer"), "coder").values():
        assert simulate(log, make(), Setting(streams=3, seed=1)) == simulate(log, make(), Setting(streams=3, seed=1))


def test_a_router_finds_the_expert_of_each_text(log: Log) -> None:
    outcomes = outcomes_of(log, Setting(streams=2), "coder")
    single = next(outcome for name, outcome in outcomes.items() if name.startswith("best single"))
    assert outcomes["learned"].tokens_per_s > 1.3 * single.tokens_per_s
    assert outcomes["learned"].tokens_per_s > 1.3 * outcomes["off"].tokens_per_s


def test_shared_tokens_follow_the_most_confident(log: Log) -> None:
    policy = Policy("", ("coder", "writer"), shares_tokens=True)
    tree, _ = tree_of(policy, log, 0, 1, ("coder", "writer"), 4)
    main = [token for token, names in zip(tree.tokens, tree.proposers, strict=True) if names == ("coder",)]
    assert main == list(log.texts[0].tokens[1:5])
    assert tree.survival == sorted(tree.survival, reverse=True)
    assert all(parent < node for node, parent in enumerate(tree.parents, start=1))


def test_a_wrong_shared_token_goes_on_as_its_own_drafter_would(log: Log) -> None:
    said = log.drafters["writer"].guesses[0][1]
    sure = DrafterLog(guesses=((chain((999, 998, 997), 0.99),) * 40,) * 8, token_s={1: TOKEN_S})
    wrong = log.model_copy(update={"drafters": {**log.drafters, "writer": sure}})
    tree, _ = tree_of(Policy("", ("coder", "writer"), shares_tokens=True), wrong, 0, 1, ("coder", "writer"), 3)
    assert said.tokens[0] == 999
    assert tree.tokens[:1] == [999] and 998 in tree.tokens and log.texts[0].tokens[1] in tree.tokens


def test_a_guess_is_cut_by_level() -> None:
    guess = Guess(tokens=(1, 2, 3, 4), parents=(0, 0, 1, 3), confidences=(0.5, 0.4, 0.3, 0.2))
    assert guess.cut(1) == Guess(tokens=(1, 2), parents=(0, 0), confidences=(0.5, 0.4))
    assert guess.cut(2).parents == (0, 0, 1)


def test_a_slower_verifier_makes_more_drafting_pay(log: Log) -> None:
    slow = simulate(log, Policy("", ("coder",)), Setting(streams=1, slowdown=20.0, hop_s=0.02))
    fast = simulate(log, Policy("", ("coder",)), Setting(streams=1, slowdown=1.0, hop_s=0.02))
    assert slow.accepted_length >= fast.accepted_length
