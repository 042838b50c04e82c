"""Test token fusion, and running ahead with it, on scripted models."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafter.draft_kv import DraftKV
from app.drafter.token_fusion import TokenFusion
from app.messages import LEAST_SURVIVAL, Draft
from app.stages.draft.protocol import Context
from app.stages.fuse import fuse
from app.state import Guess, Tree
from tests.app.drafter.scripts import TOKENS, chain, context, drafts_of, erratic, steady
from tests.fakes import VOCAB, ScriptedGuesser
from tests.records import draft_job


def fusion(**models: ScriptedGuesser) -> TokenFusion:
    return TokenFusion([DraftKV(name, model, 100) for name, model in models.items()])


def fused(drafts: list[Draft], context: Context) -> Tree:
    job = draft_job(context.request_id, context.tokens, ("a", "b"), max_draft_tokens=context.max_draft_tokens)
    return fuse([(job, drafts)], VOCAB)[0]


def test_all_go_on_from_the_most_confident_token():
    """Each drafter is sure where the other is not: `a` after an even token, `b` after an odd one."""
    a = ScriptedGuesser(lambda read: Guess(read[-1] + 1, 0.9 if read[-1] % 2 == 0 else 0.3, 0, 0.0))
    b = ScriptedGuesser(lambda read: Guess(read[-1] + 3, 0.3 if read[-1] % 2 == 0 else 0.9, 0, 0.0))
    (from_a, from_b) = drafts_of(fusion(a=a, b=b), [(context([8]), ("a", "b"))])
    assert (from_a.drafter, from_b.drafter) == ("a", "b")
    assert a.rows == b.rows == 1 + 3, "each read the prefix and then every shared token but the last, once"
    tree = fused([from_a, from_b], context([8]))
    assert path(tree) == [9, 12, 13, 16]
    assert [tree.proposers[node - 1] for node in main(tree)] == [("a",), ("b",), ("a",), ("b",)]


def test_a_losing_guess_is_a_leaf_in_its_drafters_name():
    sure, unsure = steady(1, 0.8), steady(2, 0.3)
    drafts = drafts_of(fusion(a=sure, b=unsure), [(context([8], depth=3), ("a", "b"))])
    assert drafts[0].borrowed == () and drafts[0].tokens == (9, 10, 11)
    assert own_ways(drafts[1]) == {(10,), (9, 11), (9, 10, 12)}, "the path's nodes are borrowed, not its own"
    tree = fused(drafts, context([8], depth=3))
    by_path = {tuple(way): tree.proposers[i] for i, way in enumerate(ways(tree.tokens, tree.parents))}
    assert by_path[(9, 10, 11)] == ("a",) and by_path[(9, 11)] == ("b",)


def test_a_chain_whose_leaves_nobody_verifies_is_whole_without_them():
    wanted = context([8], depth=3)
    lengths = []
    for has_leaves in (True, False):
        asked = replace(wanted, has_leaves=has_leaves)
        drafts = drafts_of(fusion(a=steady(1, 0.5, second=1, second_confidence=0.4)), [(asked, ("a",))])
        lengths.append(len(path(fused(drafts, wanted))))
    assert lengths == [2, 3]


def test_a_token_guessed_by_two_survives_more():
    together = drafts_of(fusion(a=steady(1, 0.6), b=steady(1, 0.5)), [(context(), ("a", "b"))])
    alone = drafts_of(fusion(a=steady(1, 0.6)), [(context(), ("a",))])
    tree, lone = fused(together, context()), fused(alone, context())
    assert set(tree.proposers[0]) == {"a", "b"}
    assert tree.survival[0] > lone.survival[0]


def test_a_second_best_that_wins_counts_as_an_opinion():
    drafts = drafts_of(
        fusion(a=steady(1, 0.9), b=steady(2, 0.5, second=9, second_confidence=0.2)),
        [(context([8], depth=1), ("a", "b"))],
    )
    assert drafts[1].borrowed == ()
    assert dict(zip(drafts[1].tokens, drafts[1].confidences, strict=True)) == {9: 0.2, 10: 0.5}


def test_only_drafters_that_are_asked_take_part():
    a, b = steady(1), steady(2)
    one = fusion(a=a, b=b)
    drafts = drafts_of(one, [(context(request_id="r"), ("a",)), (context(request_id="s"), ("a", "b", "lookup"))])
    assert [(draft.request_id, draft.drafter) for draft in drafts] == [("r", "a"), ("s", "a"), ("s", "b")]
    assert drafts_of(one, [(context(), ("lookup",))]) == []


def test_a_drafter_without_memory_leaves_the_others_drafting():
    full = steady(2, 0.99)
    full.is_full = True
    one = fusion(a=steady(1), b=full)
    (draft,) = drafts_of(one, [(context([8]), ("a", "b"))])
    assert draft.drafter == "a" and draft.tokens == (9, 10, 11, 12)


def test_a_drafter_that_overflows_leaves_the_others_drafting():
    def overflow(read: list[int]) -> Guess:
        raise ArithmeticError("not finite")

    one = fusion(a=steady(1), b=ScriptedGuesser(overflow))
    (draft,) = drafts_of(one, [(context([8]), ("a", "b"))])
    assert draft.drafter == "a" and draft.tokens == (9, 10, 11, 12)


def test_a_path_ends_when_it_became_unlikely():
    drafts = drafts_of(fusion(a=steady(1, 0.2), b=steady(2, 0.1)), [(context(depth=20), ("a", "b"))])
    steps = next(n for n in range(1, 20) if 0.2**n < LEAST_SURVIVAL)
    assert max(len(way) for draft in drafts for way in ways(draft.tokens, draft.parents)) == steps


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(0, 99), st.data())
def test_a_history_changes_no_draft(count, seed, data):
    """Draft as a fresh fusion does, whatever was right, wrong, run ahead on or drafted by others before."""

    def models() -> dict[str, ScriptedGuesser]:
        return {f"m{i}": erratic(seed + i) for i in range(count)}

    one, tokens = fusion(**models()), list(TOKENS)
    for _ in range(data.draw(st.integers(1, 6))):
        names = data.draw(st.sets(st.sampled_from(sorted(models())), min_size=1))
        asked = context(tokens, data.draw(st.integers(1, 4)))
        drafts = drafts_of(one, [(asked, names)])
        assert drafts == drafts_of(fusion(**models()), [(asked, names)])
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 12]))):
            one.run_ahead(["r"])
        right = data.draw(st.sampled_from([[], chain(drafts[0])[:1], chain(drafts[0])]))
        tokens = [*tokens, *right, data.draw(st.integers(0, 4))]


def test_shared_paths_are_run_ahead_on_together():
    a, b = steady(1, 0.9), steady(2, 0.5)
    one = fusion(a=a, b=b)
    drafts_of(one, [(context([8], depth=2), ("a", "b"))])
    while one.run_ahead(["r"]):
        pass
    a.calls.clear(), b.calls.clear()
    drafts = drafts_of(one, [(context([8, 9, 10, 11], depth=2), ("a", "b"))])
    assert a.calls == b.calls == [] and one.ahead_hits == 1
    assert path(fused(drafts, context([8, 9, 10, 11], depth=2))) == [12, 13]


def main(tree: Tree) -> list[int]:
    found = [0]
    while found[-1] in tree.parents:
        found.append(tree.parents.index(found[-1]) + 1)
    return found[1:]


def path(tree: Tree) -> list[int]:
    return [tree.tokens[node - 1] for node in main(tree)]


def ways(tokens, parents) -> list[tuple[int, ...]]:
    """Return the path from below the root to each node."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*found[parent], token))
    return found[1:]


def own_ways(draft: Draft) -> set[tuple[int, ...]]:
    everything = ways(draft.tokens, draft.parents)
    return {way for i, way in enumerate(everything, start=1) if i not in draft.borrowed}
