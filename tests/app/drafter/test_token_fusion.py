"""Token fusion and running ahead, on models that say what they are told."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafter.draft_kv import MIN_SURVIVAL, DraftKV
from app.drafter.token_fusion import TokenFusion
from app.estimates.calibration import Calibration
from app.messages import Draft, DraftJob
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.stages.fuse import fuse
from app.state import Guess, Tree
from tests.fakes import VOCAB, ScriptedGuesser

TOKENS = [3, 1, 4, 1, 5]


def context(tokens: list[int] = TOKENS, depth: int = 4, request_id: str = "r") -> Context:
    return Context(request_id, "public", list(tokens), 1, depth, Sampling())


def cooperation(calibration: Calibration | None = None, **models: ScriptedGuesser) -> TokenFusion:
    return TokenFusion([DraftKV(name, model, 100) for name, model in models.items()], calibration)


def steady(step: int, confidence: float = 0.9, second: int = 0, second_confidence: float = 0.0) -> ScriptedGuesser:
    """Says that each token is `step` more than the one before."""
    return ScriptedGuesser(lambda read: Guess((read[-1] + step) % VOCAB, confidence, second, second_confidence))


def fused(drafts: list[Draft], context: Context) -> Tree:
    job = DraftJob(
        request_id=context.request_id,
        verifier="v",
        fuser="f",
        base=len(context.tokens),
        start=0,
        tokens=tuple(context.tokens),
        prompt_length=1,
        max_draft_tokens=context.max_draft_tokens,
        drafters=("a", "b"),
        sampling=context.sampling,
        due_s=0.0,
    )
    return fuse(job, drafts, VOCAB, Calibration())


def test_all_go_on_from_the_most_confident_token_and_the_loser_reads_it():
    """Each is sure where the other is not: after an even token `a` knows, after an odd one `b`."""
    a = ScriptedGuesser(lambda read: Guess(read[-1] + 1, 0.9 if read[-1] % 2 == 0 else 0.3, 0, 0.0))
    b = ScriptedGuesser(lambda read: Guess(read[-1] + 3, 0.3 if read[-1] % 2 == 0 else 0.9, 0, 0.0))
    (from_a, from_b) = cooperation(a=a, b=b).draft([(context([8]), ("a", "b"))])
    assert (from_a.drafter, from_b.drafter) == ("a", "b")
    assert a.rows == b.rows == 1 + 3, "each read the prefix and then every shared token but the last, once"
    tree = fused([from_a, from_b], context([8]))
    assert path(tree) == [9, 12, 13, 16]
    assert [tree.proposers[node - 1] for node in main(tree)] == [("a",), ("b",), ("a",), ("b",)]


def test_a_losing_guess_hangs_beside_the_path_in_its_drafters_own_name():
    sure, unsure = steady(1, 0.8), steady(2, 0.3)
    drafts = cooperation(a=sure, b=unsure).draft([(context([8], depth=3), ("a", "b"))])
    assert drafts[0].borrowed == () and drafts[0].tokens == (9, 10, 11)
    assert said_by(drafts[1]) == {(10,), (9, 11), (9, 10, 12)}, "the path's nodes are borrowed, not said"
    tree = fused(drafts, context([8], depth=3))
    by_path = {tuple(way): tree.proposers[i] for i, way in enumerate(ways(tree.tokens, tree.parents))}
    assert by_path[(9, 10, 11)] == ("a",) and by_path[(9, 11)] == ("b",)


def test_what_two_say_is_said_by_both_and_survives_more():
    together = cooperation(a=steady(1, 0.6), b=steady(1, 0.5)).draft([(context(), ("a", "b"))])
    alone = cooperation(a=steady(1, 0.6)).draft([(context(), ("a",))])
    tree, lone = fused(together, context()), fused(alone, context())
    assert set(tree.proposers[0]) == {"a", "b"}
    assert tree.survival[0] > lone.survival[0]


def test_a_second_best_that_is_the_winners_token_is_an_opinion_on_it():
    drafts = cooperation(a=steady(1, 0.9), b=steady(2, 0.5, second=9, second_confidence=0.2)).draft(
        [(context([8], depth=1), ("a", "b"))]
    )
    assert drafts[1].borrowed == ()
    assert dict(zip(drafts[1].tokens, drafts[1].confidences, strict=True)) == {9: 0.2, 10: 0.5}


def test_the_winner_is_the_most_confident_after_calibration():
    calibration = Calibration()
    for _ in range(200):
        calibration.update("boaster", 0.95, accepted=False)
        calibration.update("modest", 0.6, accepted=True)
    models = {"boaster": steady(1, 0.95), "modest": steady(2, 0.6)}
    drafts = cooperation(calibration, **models).draft([(context([8], depth=2), ("boaster", "modest"))])
    assert path(fused(drafts[1:], context([8], depth=2))) == [10, 12]


def test_it_learns_from_what_is_committed_who_boasts():
    one = cooperation(boaster=steady(1, 0.95), modest=steady(2, 0.6))
    tokens = [8]
    for _ in range(60):
        one.draft([(context(tokens, depth=1), ("boaster", "modest"))])
        tokens = [*tokens, (tokens[-1] + 2) % VOCAB]
    (boaster, modest) = one.draft([(context(tokens, depth=2), ("boaster", "modest"))])
    assert boaster.borrowed and not modest.borrowed, "what the boaster says hangs beside what the modest one does"


def test_only_those_that_are_asked_take_part():
    a, b = steady(1), steady(2)
    one = cooperation(a=a, b=b)
    drafts = one.draft([(context(request_id="r"), ("a",)), (context(request_id="s"), ("a", "b", "lookup"))])
    assert [(draft.request_id, draft.drafter) for draft in drafts] == [("r", "a"), ("s", "a"), ("s", "b")]
    assert one.draft([(context(), ("lookup",))]) == []


def test_one_without_memory_leaves_the_others_drafting():
    full = steady(2, 0.99)
    full.is_full = True
    one = cooperation(a=steady(1), b=full)
    (draft,) = one.draft([(context([8]), ("a", "b"))])
    assert draft.drafter == "a" and draft.tokens == (9, 10, 11, 12)


def test_one_that_overflows_leaves_the_others_drafting():
    def overflow(read: list[int]) -> Guess:
        raise ArithmeticError("not finite")

    one = cooperation(a=steady(1), b=ScriptedGuesser(overflow))
    (draft,) = one.draft([(context([8]), ("a", "b"))])
    assert draft.drafter == "a" and draft.tokens == (9, 10, 11, 12)


def test_a_path_ends_when_it_became_unlikely():
    drafts = cooperation(a=steady(1, 0.2), b=steady(2, 0.1)).draft([(context(depth=20), ("a", "b"))])
    steps = next(n for n in range(1, 20) if 0.2**n < MIN_SURVIVAL)
    assert max(len(way) for draft in drafts for way in ways(draft.tokens, draft.parents)) == steps


def test_borrowed_nodes_are_no_part_of_what_is_calibrated():
    drafts = cooperation(a=steady(1, 0.8), b=steady(2, 0.3)).draft([(context([8], depth=3), ("a", "b"))])
    calibration = Calibration()
    calibration.update_from_drafts(drafts, [9, 10, 11])
    report = calibration.report()
    assert (report["a"].acceptance, report["b"].acceptance) == (1.0, 0.0)


def erratic(seed: int) -> ScriptedGuesser:
    """Says something else after every other text: it tells whether a cache was rolled back right."""

    def say(read: list[int]) -> Guess:
        draw = Random(hash((seed, *read)))
        return Guess(draw.randrange(5), draw.uniform(0.05, 0.9), draw.randrange(5, 9), draw.uniform(0.0, 0.4))

    return ScriptedGuesser(say)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(0, 99), st.data())
def test_a_history_changes_no_draft(count, seed, data):
    """Whatever was right, wrong, run ahead on or asked of others before: what is drafted is what fresh ones draft."""

    def models() -> dict[str, ScriptedGuesser]:
        return {f"m{i}": erratic(seed + i) for i in range(count)}

    calibration = Calibration()  # what one has learnt, the fresh ones know too
    one, tokens = cooperation(calibration, **models()), list(TOKENS)
    for _ in range(data.draw(st.integers(1, 6))):
        names = data.draw(st.sets(st.sampled_from(sorted(models())), min_size=1))
        asked = context(tokens, data.draw(st.integers(1, 4)))
        drafts = one.draft([(asked, names)])
        assert drafts == cooperation(calibration, **models()).draft([(asked, names)])
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 12]))):
            one.run_ahead(["r"])
        right = data.draw(st.sampled_from([[], chain(drafts[0])[:1], chain(drafts[0])]))
        tokens = [*tokens, *right, data.draw(st.integers(0, 4))]


def test_a_hit_answers_without_calling_the_model():
    model = steady(1)
    one = cooperation(a=model)
    one.draft([(context([8], depth=3), ("a",))])
    while one.run_ahead(["r"]):
        pass
    model.calls.clear()
    (draft,) = one.draft([(context([8, 9, 10, 11, 12], depth=3), ("a",))])  # 9, 10, 11 were right, and 12 the target's
    assert draft == cooperation(a=steady(1)).draft([(context([8, 9, 10, 11, 12], depth=3), ("a",))])[0]
    assert model.calls == []
    assert (one.ahead_hits, one.ahead_misses) == (1, 0)


def test_only_the_missing_depth_is_computed():
    model = steady(1)
    one = cooperation(a=model)
    one.draft([(context([8], depth=3), ("a",))])
    one.run_ahead(["r"])
    one.run_ahead(["r"])
    model.rows = 0
    (draft,) = one.draft([(context([8, 9, 10, 11, 12], depth=3), ("a",))])
    assert draft.tokens == (13, 14, 15)
    assert model.rows == 2, "13 was there; it and 14 are read to guess 14 and 15"


def test_a_miss_rolls_back():
    model = steady(1)
    one = cooperation(a=model)
    one.draft([(context([8], depth=3), ("a",))])
    while one.run_ahead(["r"]):
        pass
    model.rows = 0
    (draft,) = one.draft([(context([8, 9, 10, 20], depth=3), ("a",))])
    assert draft.tokens == (21, 22, 23)
    assert model.rows == 1 + 2, "8, 9, 10 stay in the cache, 20 is read, and what was ahead is gone"
    assert (one.ahead_hits, one.ahead_misses) == (0, 1)


def test_running_ahead_takes_small_steps_and_ends():
    model = steady(1)
    one = cooperation(a=model)
    one.draft([(context([8], depth=3), ("a",))])
    model.calls.clear()
    steps = 0
    while one.run_ahead(["r"]):
        steps += 1
        assert len(model.calls) == steps
    assert model.calls == [1] * steps
    assert steps == 3 + 1, "the target's own token, and as many as may be asked for next"
    assert not one.run_ahead(["nobody"])


def test_nobody_runs_ahead_of_what_is_unlikely():
    model = steady(1, 0.1)
    one = cooperation(a=model)
    one.draft([(context([8], depth=9), ("a",))])
    assert not one.run_ahead(["r"])


@pytest.mark.parametrize("reason", ["memory", "unread"])
def test_running_ahead_costs_nobody_anything(reason):
    """Without room it takes none from others, and it reads no long prefix again that was given up meanwhile."""
    model = steady(1)
    reader = DraftKV("a", model, 100)
    one = TokenFusion([reader])
    one.draft([(context(TOKENS * 8, depth=3), ("a",)), (context(TOKENS * 8, depth=3, request_id="s"), ("a",))])
    model.calls.clear()
    if reason == "memory":
        model.is_full = True
    else:
        reader.remove("r")
    assert not one.run_ahead(["r"])
    assert model.calls == [] or reason == "memory"
    model.is_full = False
    model.rows = 0
    one.draft([(context([*TOKENS * 8, 6], depth=1, request_id="s"), ("a",))])
    assert model.rows <= 2, "the other one's cache stands"


def test_paths_that_are_shared_are_run_ahead_on_together():
    a, b = steady(1, 0.9), steady(2, 0.5)
    one = cooperation(a=a, b=b)
    one.draft([(context([8], depth=2), ("a", "b"))])
    while one.run_ahead(["r"]):
        pass
    a.calls.clear(), b.calls.clear()
    drafts = one.draft([(context([8, 9, 10, 11], depth=2), ("a", "b"))])
    assert a.calls == b.calls == [] and one.ahead_hits == 1
    assert path(fused(drafts, context([8, 9, 10, 11], depth=2))) == [12, 13]


def chain(draft: Draft) -> list[int]:
    """The first child of each node, from the root on."""
    found, node = [], 0
    while node in draft.parents:
        node = draft.parents.index(node) + 1
        found.append(draft.tokens[node - 1])
    return found


def main(tree: Tree) -> list[int]:
    found = [0]
    while found[-1] in tree.parents:
        found.append(tree.parents.index(found[-1]) + 1)
    return found[1:]


def path(tree: Tree) -> list[int]:
    return [tree.tokens[node - 1] for node in main(tree)]


def ways(tokens, parents) -> list[tuple[int, ...]]:
    """From below the root to each node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token))
    return found[1:]


def said_by(draft: Draft) -> set[tuple[int, ...]]:
    everything = ways(draft.tokens, draft.parents)
    return {way for i, way in enumerate(everything, start=1) if i not in draft.borrowed}
