"""Test how a batch is composed: bounds, order, turns, and the trees of the policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.step_costs import Reading, StepCosts
from app.policy import Policy
from app.request import SpeculationBounds
from app.scheduler.compose import TAIL_TOKENS, compose, wait_s
from app.scheduler.prefill import chunk_tokens
from app.scheduler.tree_budget import MOST_NODES, WholeSelection
from app.state import CachedSequence, Sequence, Tree
from tests.records import record

MEASURED = StepCosts({1: 0.045, 2: 0.052, 4: 0.057, 8: 0.066, 16: 0.083, 32: 0.115})
FLAT = StepCosts({1: 1.0, 1000: 1.0})
NOW = 1000.0

falling = st.lists(st.floats(0, 1), max_size=5).map(lambda s: sorted(s, reverse=True))


def chain(survival: list[float]) -> Tree:
    return Tree(list(range(len(survival))), list(range(len(survival))), survival, [("a",)] * len(survival))


def sequence(
    name: str,
    prompt: int,
    generated: int = 0,
    cached: int | None = None,
    tree: Tree | None = None,
    due_s: float = 0.0,
    created_s: float = 0.0,
    max_tokens: int = 100,
    speculation: SpeculationBounds | None = None,
    last_token_s: float | None = None,
) -> Sequence:
    made = record(range(prompt), max_tokens, request_id=name, speculation=speculation, created_s=created_s)
    tokens = list(range(prompt + generated))
    done = len(tokens) - 1 if cached is None else cached
    kv = CachedSequence(name, tokens, cached=done)
    return Sequence(made, kv, tree=tree, due_s=due_s, last_token_s=last_token_s)


@st.composite
def populations(draw: st.DrawFn) -> list[Sequence]:
    found = []
    for i in range(draw(st.integers(0, 12))):
        prompt, generated = draw(st.integers(1, 60)), draw(st.sampled_from([0, 0, 1, 5, 99]))
        length = prompt + generated
        found.append(
            sequence(
                f"s{i}",
                prompt,
                generated,
                cached=draw(st.just(length - 1) | st.integers(0, length - 1)),
                tree=draw(st.none() | falling.map(chain)),
                due_s=draw(st.sampled_from([0.0, NOW - 1, NOW + 1])),
                created_s=draw(st.floats(0, 10)),
                last_token_s=draw(st.none() | st.floats(0, NOW)),
            )
        )
    return found


policies = st.builds(
    Policy,
    max_draft_tokens=st.integers(0, 8),
    max_batch_tokens=st.integers(16, 80),
    prefill_chunk_tokens=st.integers(16, 80),
)


@settings(max_examples=300, deadline=None)
@given(populations(), policies, st.sets(st.integers(0, 12).map("s{}".format), max_size=3), st.booleans())
def test_every_batch_is_sound(sequences: list[Sequence], policy: Policy, suspects: set[str], is_together: bool) -> None:
    batch = compose(sequences, policy, NOW, MEASURED, suspects, is_together)
    rows = sum(len(work.tokens) + len(work.tree) for work in batch)
    assert rows <= policy.max_batch_tokens
    names = [work.sequence.id for work in batch]
    assert len(set(names)) == len(names)
    assert len(batch) == 1 or not suspects & set(names)
    prompt_tokens = 0
    by_id = {s.record.id: s for s in sequences}
    for work in batch:
        s = by_id[work.sequence.id]
        assert work.start == s.cached and work.tokens
        assert work.tokens == s.tokens[work.start : work.start + len(work.tokens)]
        assert work.final == (work.start + len(work.tokens) == len(s.tokens))
        is_running = s.generated > 0 and len(s.tokens) - s.cached <= TAIL_TOKENS
        assert work.final or not is_running
        if not is_running:
            prompt_tokens += len(work.tokens)
            assert not len(work.tree)
        else:
            assert s.tree is not None or s.due_s <= NOW
            assert len(work.tree) <= (MOST_NODES if policy.max_draft_tokens else 0)
            assert len(work.tree) < s.record.max_tokens - s.generated
        if len(work.tree):
            assert s.tree is not None and work.tree == s.tree.cut(len(work.tree))
    assert prompt_tokens <= chunk_tokens(MEASURED, policy)
    wait = wait_s(sequences, policy, NOW, MEASURED, suspects, is_together)
    assert (wait == 0.0) == bool(batch)
    assert (wait is None) == (not sequences)


@given(populations(), policies, st.booleans())
def test_the_oldest_prompt_always_moves_and_so_does_the_oldest_running(
    sequences: list[Sequence], policy: Policy, is_together: bool
) -> None:
    batch = {work.sequence.id for work in compose(sequences, policy, NOW, MEASURED, is_together=is_together)}
    by_age = sorted(sequences, key=lambda s: (s.record.created_s, s.record.id))
    running = [s for s in by_age if s.generated > 0 and len(s.tokens) - s.cached <= TAIL_TOKENS]
    prompts = [s for s in by_age if s not in running]
    ready = [s for s in running if s.tree is not None or s.due_s <= NOW]
    all_could_go = len(ready) == len(running)
    waits_for_trees = is_together and not all_could_go and not batch
    assert waits_for_trees or all(s.record.id in batch for s in prompts[:1])
    if is_together:
        assert not ready or (ready[0].record.id in batch) == all_could_go, "they go in one batch, or wait for it"
    elif all_could_go:
        assert not ready or any(s.record.id in batch for s in ready), "the half that waited longest"
    else:
        assert all(s.record.id in batch for s in ready[:1])


@settings(max_examples=50, deadline=None)
@given(populations(), policies, st.sets(st.integers(0, 12).map("s{}".format), max_size=3), st.booleans())
def test_all_sequences_get_to_their_end(
    sequences: list[Sequence], policy: Policy, suspects: set[str], is_together: bool
) -> None:
    live = [s for s in sequences if s.generated < 99]
    for s in live:
        s.record = s.record.model_copy(update={"max_tokens": s.generated + 3})
    now_s, steps = NOW, 0
    while live:
        now_s += (wait_s(live, policy, now_s, MEASURED, suspects, is_together) or 0.0) + 0.001
        for work in compose(live, policy, now_s, MEASURED, suspects, is_together):
            s = next(s for s in live if s.kv is work.sequence)
            s.kv.cached += len(work.tokens)
            if work.final:
                s.tokens.append(0)
                s.tree, s.due_s = None, now_s + 0.05
                s.last_token_s = now_s
        live = [s for s in live if s.generated < s.record.max_tokens]
        steps += 1
        assert steps < 3000  # 0.001 s each


@pytest.mark.parametrize(
    ("costs", "prompt", "expected_s", "is_held"),
    [
        (FLAT, 50, 0.1, True),  # a step of its own would read all weights once more
        (FLAT, 50, 0.9, False),  # and ends hardly later than the drafts come
        (StepCosts({1: 1.0, 16: 1.0, 116: 101.0}), 50, 0.1, False),  # sixteen rows are free in each of two steps
        (StepCosts({1: 0.001, 1001: 10.0}), 50, 0.1, False),  # the rows are all that it takes: they hide the drafting
    ],
)
def test_a_prompt_waits_for_drafts_where_one_step_is_sooner_than_two(
    costs: StepCosts, prompt: int, expected_s: float, is_held: bool
) -> None:
    waiting = [sequence(f"s{i}", 3, 2, due_s=NOW + 3.0) for i in range(4)]
    for s in waiting:
        s.asked, s.expected_s = 4, NOW + expected_s
    sequences = [*waiting, sequence("p", prompt, cached=0)]
    batch = compose(sequences, Policy(), NOW, costs)
    assert [work.sequence.id for work in batch] == ([] if is_held else ["p"])
    assert wait_s(sequences, Policy(), NOW, costs) == (pytest.approx(3.0) if is_held else 0.0)
    assert compose(sequences, Policy(), NOW, costs, drafts_here=True) == [], "drafting on the same cores would wait"
    assert wait_s(sequences, Policy(), NOW, costs, drafts_here=True) == pytest.approx(3.0)
    for s in waiting:
        s.tree = chain([0.9] * 4)
    assert len(compose(sequences, Policy(), NOW, costs)) == 5


def test_rows_of_long_contexts_cost_more_so_they_are_cut_first() -> None:
    costs = StepCosts({1: 0.020, 64: 0.083}, reading=Reading(0.0, 5e-6))

    def kept(long: int) -> list[int]:
        sequences = [sequence(name, size, 2, tree=chain([0.6, 0.4])) for name, size in (("a", 10), ("z", long))]
        return [len(work.tree) for work in compose(sequences, Policy(), NOW, costs)]

    assert kept(10) == [2, 2]
    assert kept(3000) == [2, 0]


@pytest.mark.parametrize("logits_s", [0.0, 0.0005])
@pytest.mark.parametrize(("survival", "nodes"), [(0.2, 0), (0.35, 1)])
def test_a_prompt_in_the_step_makes_nodes_no_cheaper(survival: float, nodes: int, logits_s: float) -> None:
    """A step twenty times as long is no pace to compare with: what is not drafted is decoded in a later one."""
    costs = StepCosts({1: 0.011, 101: 0.111}, logits_s=logits_s)  # a row more: a millisecond

    def kept(*prompts: Sequence) -> list[int]:
        running = [sequence(name, 3, 2, tree=chain([survival, 0.1])) for name in ("a", "b", "c", "d")]
        return [len(work.tree) for work in compose([*running, *prompts], Policy(), NOW, costs)][:4]

    assert kept(sequence("p", 200, cached=0)) == kept() == [nodes] * 4


def test_waits_while_all_trees_are_on_their_way() -> None:
    waiting = [
        sequence("a", 3, 2, due_s=NOW + 0.2),
        sequence("b", 3, 2, due_s=NOW + 0.1),
    ]
    assert compose(waiting, Policy(), NOW, MEASURED) == []
    assert wait_s(waiting, Policy(), NOW, MEASURED) == pytest.approx(0.2)
    assert wait_s(waiting, Policy(), NOW, MEASURED, is_together=False) == pytest.approx(0.1)
    waiting[0].tree = Tree()
    assert [work.sequence.id for work in compose(waiting, Policy(), NOW, MEASURED, is_together=False)] == ["a"]
    assert len(compose(waiting, Policy(), NOW + 0.1, MEASURED)) == 2


def test_a_prompt_is_read_in_chunks_beside_running_sequences() -> None:
    prompt = sequence("p", 100, cached=0, created_s=5.0)
    running = [sequence(f"r{i}", 3, 2, created_s=1.0) for i in range(30)]
    policy = Policy(max_batch_tokens=32, prefill_chunk_tokens=16)
    batch = compose([*running, prompt], policy, NOW, MEASURED)
    assert len(batch) == 17
    assert batch[-1].sequence is prompt.kv
    assert len(batch[-1].tokens) == 16 and not batch[-1].final
    prompt.kv.cached = 95
    last = compose([*running, prompt], policy, NOW, MEASURED)[-1]
    assert last.final and len(last.tokens) == 5


def test_no_draft_token_past_the_requests_end_or_its_own_bounds() -> None:
    def tree_of(**rest: object) -> Tree:
        s = sequence("a", 3, 2, tree=chain([0.99, 0.98, 0.97, 0.96]), **rest)  # type: ignore[arg-type]
        return compose([s], Policy(), NOW, FLAT)[0].tree

    assert len(tree_of()) == 4
    assert len(tree_of(max_tokens=5)) == 2, "the target's own token is the third"
    assert len(tree_of(max_tokens=3)) == 0
    assert len(tree_of(speculation=SpeculationBounds(max_draft_tokens=1))) == 1
    assert len(tree_of(speculation=SpeculationBounds(enabled=False))) == 0


def test_of_many_sequences_fewer_nodes_of_each_are_weighed() -> None:
    def most(count: int) -> int:
        crowd = [sequence(f"s{i}", 3, 2, tree=chain([0.99] * 40)) for i in range(count)]
        return max(len(work.tree) for work in compose(crowd, Policy(max_batch_tokens=4096), NOW, FLAT))

    assert [most(count) for count in (1, 8, 16, 32, 64, 100)] == [32, 32, 16, 8, 4, 4]


def test_whole_trees_stay_whole_however_many_there_are() -> None:
    sequences = [sequence(f"s{i}", 3, 2, tree=chain([0.01] * 8)) for i in range(64)]
    policy = Policy(max_draft_tokens=1)
    batch = compose(sequences, policy, NOW, MEASURED, selection=WholeSelection())
    assert [len(work.tree) for work in batch] == [8] * 64
    narrow = policy.model_copy(update={"max_batch_tokens": 64 * 4 + 1})
    found = [len(work.tree) for work in compose(sequences, narrow, NOW, MEASURED, selection=WholeSelection())]
    assert sorted(found) == [3] * 63 + [4], "where rows lack, all lose alike"


def test_too_deep_branches_leave_and_the_others_keep_their_parents() -> None:
    tree = Tree([1, 2, 3, 4, 5], [0, 1, 2, 0, 4], [0.9, 0.8, 0.7, 0.6, 0.5], [("a",)] * 5)
    s = sequence("a", 3, 2, tree=tree, max_tokens=5)
    kept = compose([s], Policy(), NOW, FLAT)[0].tree
    assert kept.tokens == [1, 2, 4, 5]
    assert kept.parents == [0, 1, 0, 3]


def test_suspects_run_alone_in_turn_with_the_others() -> None:
    sequences = [sequence(name, 3, 2, last_token_s=float(i)) for i, name in enumerate("abc")]
    turns = []
    for step in range(6):
        batch = compose(sequences, Policy(), NOW + step, MEASURED, {"b", "c"})
        turns.append("".join(work.sequence.id for work in batch))
        for work in batch:
            next(s for s in sequences if s.kv is work.sequence).last_token_s = NOW + step
    assert turns == ["a", "b", "c", "a", "b", "c"]


def test_halves_take_turns_where_all_could_go() -> None:
    def gone(*last_s: float) -> list[str]:
        all_of_them = [
            sequence(name, 3, 2, tree=chain([0.5]), last_token_s=at_s)
            for name, at_s in zip("abcde", last_s, strict=False)
        ]
        batch = compose(all_of_them, Policy(), NOW, FLAT, is_together=False)
        return [work.sequence.id for work in batch]

    assert gone(4.0, 1.0, 3.0, 2.0) == ["b", "d"]
    assert gone(4.0, 9.0, 3.0, 9.0) == ["a", "c"]
    assert gone(4.0, 9.0, 3.0, 9.0, 1.0) == ["a", "c", "e"]
    assert gone(5.0) == ["a"]
    drafting = sequence("x", 3, 2, due_s=NOW + 1, last_token_s=0.0)
    ready = [sequence(name, 3, 2, tree=chain([0.5]), last_token_s=1.0) for name in "ab"]
    found = compose([drafting, *ready], Policy(), NOW, FLAT, is_together=False)
    assert [work.sequence.id for work in found] == ["a", "b"], "the other half drafts: none is kept back"
