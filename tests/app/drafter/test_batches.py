"""Test batches that are drafted side by side: shared passes, who waits, memory, and what a failure leaves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.drafter.draft_steps import DraftPart
from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.fuser.fuser import Fuser
from app.messages import DraftJob
from app.pipeline import begin_drafts, go_on_drafting
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import Guess
from tests.app.drafter.scripts import TOKENS, erratic
from tests.app.drafter.test_guess_tree import Clock, Paged, Timed, context, drafter_of, paths
from tests.fakes import VOCAB, draft_job, drafts_by


def ended(one: ModelDrafter, *batches: DraftPart) -> list[DraftPart]:
    """Make passes until all of these batches are done; return them in the order in which they were."""
    order: list[DraftPart] = []
    while len(order) < len(batches):
        one.trees.go_on()
        order += [batch for batch in batches if batch.is_done and batch not in order]
    return order


def test_a_batch_that_comes_later_shares_the_passes_that_are_left() -> None:
    clock = Clock()
    model = Timed(clock)
    one = drafter_of(model, clock)
    deep = one.trees.begin([context([8], 6, 64, least=0.2, request="deep")])
    one.trees.go_on()
    flat = one.trees.begin([context([8], 2, 64, least=0.2, request="flat")])
    assert ended(one, deep, flat) == [flat, deep], "what is done first waits for nothing"
    assert (deep.levels, flat.levels) == (4, 2)
    assert clock.now_s == 4, "two passes have both"


def test_drafts_of_different_prices_come_to_an_end() -> None:
    """By survival alone, dear nodes that gain less than nothing would stand before those that pay."""
    clock = Clock()
    model = Timed(clock, row_s=1.0)
    model._say = lambda read: Guess((read[-1] + 1) % VOCAB, 0.75, (read[-1] + 9) % VOCAB, 0.03)
    one = drafter_of(model, clock)
    for requests in (("first",), ("second", "third")):
        one.draft([context([8 + i], 4, 16, request=request) for i, request in enumerate(requests)])
    one.trees.sureness = 0.694
    asked = [(6, 15, 0.49, 0.299), (3, 15, 0.2, 0.165), (6, 5, 0.49, 0.028), (5, 9, 0.05, 0.065), (5, 7, 0.49, 0.057)]
    trees = [context([8], *prices, request=f"r{i}") for i, prices in enumerate(asked)]
    parts = [*map(one.trees.begin, (trees[:1], trees[1:3], trees[3:]))]
    for _ in range(40):
        one.trees.go_on()
    assert all(part.is_done for part in parts)


def test_chains_of_two_batches_share_their_calls() -> None:
    model = Timed(Clock())
    one = drafter_of(model)
    ((chain, first),), ((_, other),) = (one.begin([context([8], depth, 0, request=f"r{depth}")]) for depth in (2, 3))
    chain.go_on()
    assert (first.is_done, other.is_done, model.batches) == (True, False, [2])
    chain.go_on()
    assert (other.is_done, first.levels, other.levels, model.batches) == (True, 2, 3, [2, 1])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 99), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 16), st.integers(0, 3)), max_size=4))
def test_company_changes_no_tree_where_seconds_cost_nothing(seed: int, asked: list[tuple[int, int, int]]) -> None:
    one, batches = drafter_of(erratic(seed)), []
    for i, (depth, nodes, passes) in enumerate(asked):
        batches.append(one.trees.begin([context([*TOKENS, i], depth, nodes, request=str(i))]))
        for _ in range(passes):
            one.trees.go_on()
    ended(one, *batches)
    for i, (batch, (depth, nodes, _)) in enumerate(zip(batches, asked, strict=True)):
        (fresh,) = drafter_of(erratic(seed)).draft([context([*TOKENS, i], depth, nodes)])
        assert paths(batch.drafts[0]) == paths(fresh)


@pytest.mark.parametrize("row_s", [0.0, 5.0])
def test_what_may_follow_a_pending_verdict_joins_passes_where_rows_are_cheap(row_s: float) -> None:
    clock = Clock()
    model = Timed(clock, row_s)
    one = drafter_of(model, clock)
    for request in ("first", "pending"):
        one.draft([context([8], 2, 8, request=request)])
    model.batches.clear()
    one.trees.begin([context([8], 1, 4, least=0.1, pace=0.5, request="waits")])
    one.trees.go_on(["pending"])
    assert len(model.batches) == 1 and (model.batches[0] > 1) == (row_s == 0.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(3, 14), st.data())
def test_guesses_beside_a_draft_leave_it_as_deep_and_all_pages_come_back(pages: int, data: st.DataObject) -> None:
    """It may have fewer branches where memory is short."""
    texts = [[(i + k * k) % VOCAB for k in range(data.draw(st.integers(1, 40)))] for i in range(2)]
    asked = [Context(f"r{i}", "public", texts[i], 1, 4, Sampling(), 0.0, 12, step_s=60.0) for i in (0, 1)]
    found = []
    for pending in ([], ["r0"]):
        guesser = Paged(pages)
        one = ModelDrafter("a", guesser, 256)
        one.draft(asked[:1])
        batch = one.trees.begin(asked[1:])
        while not batch.is_done:
            one.trees.go_on(pending)
        found.append({path: sure for draft in batch.drafts for path, sure in paths(draft).items()})
        for request_id in ("r0", "r1"):
            one.remove(request_id)
        assert guesser.pool.num_free == pages
    alone, beside = found
    assert max(map(len, beside), default=0) >= max(map(len, alone), default=0)
    both = alone.keys() & beside.keys()
    assert {path: beside[path] for path in both} == pytest.approx({path: alone[path] for path in both}, rel=1e-4)


def node_of(clock: Clock, max_context: int = 256) -> tuple[DrafterNode, Fuser]:
    drafter = ModelDrafter("a", Timed(clock), max_context, clock=clock)
    return DrafterNode([drafter], lambda _: None, "n", clock=clock), Fuser([], VOCAB, lambda _: None)


def job_of(name: str, tokens: list[int]) -> DraftJob:
    return replace(draft_job(name, tokens), max_draft_tokens=4, max_nodes=8, least_survival=0.3, fuser="n", step_s=60.0)


def test_a_newer_job_takes_the_place_of_one_under_way() -> None:
    node, fuser = node_of(Clock())
    begin_drafts(node, fuser, [job_of("r", [8]), job_of("s", [8])])
    go_on_drafting(node, fuser)
    begin_drafts(node, fuser, [job_of("r", [8, 9])])
    found = []
    while node.is_drafting:
        away, trees = go_on_drafting(node, fuser)
        assert away == []
        found += [(tree.request_id, tree.base, len(tree.tokens) > 1) for _, tree in trees]
    assert sorted(found) == [("r", 2, True), ("s", 1, True)], "a job has no tree once a newer one has taken its place"


def test_a_report_tells_how_much_of_a_text_was_read() -> None:
    node, _ = node_of(Clock())
    reading = replace(job_of("long", [*range(60)]), is_reading=True)

    def seen() -> dict[str, int]:
        drafts = drafts_by(node, [replace(job_of("r", [8]), step_s=0.0), reading])
        return {draft.request_id: draft.report.seen for draft in drafts if draft.report is not None}

    assert seen() == {"r": 1, "long": 0}
    while node.has_ahead:
        node.run_ahead()
    assert seen() == {"r": 1, "long": 60}


def test_late_drafts_are_ended_whatever_is_to_be_read_beside() -> None:
    node, fuser = node_of(Clock())
    reading = replace(job_of("long", [*range(60)]), is_reading=True, due_s=99.0)
    begin_drafts(node, fuser, [replace(job_of("r", [8]), due_s=10.0), reading])
    node.drop_late(11.0)
    node.go_on()
    assert not node.is_drafting


@pytest.mark.parametrize("max_nodes", [0, 8])
def test_no_draft_waits_for_a_text_whatever_its_form(max_nodes: int) -> None:
    node, _ = node_of(Clock())
    jobs = [replace(job_of(name, tokens), max_nodes=max_nodes) for name, tokens in (("r", [8]), ("long", [*range(60)]))]
    drafts = {draft.request_id: draft for draft in drafts_by(node, [jobs[0], replace(jobs[1], is_reading=True)])}
    assert len(drafts["r"].tokens) > 1 and not drafts["long"].tokens
    assert node._models["a"].draft_kv.read == 0


def test_an_end_leaves_the_others_of_a_batch() -> None:
    node, fuser = node_of(Clock())
    begin_drafts(node, fuser, [job_of("r", [8]), job_of("s", [8])])
    go_on_drafting(node, fuser)
    begin_drafts(node, fuser, [replace(job_of("r", [8, 9]), is_last=True)])
    found = []
    while node.is_drafting:
        found += [tree.request_id for _, tree in go_on_drafting(node, fuser)[1]]
    assert found == ["s"]


def test_what_a_failing_model_leaves_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    models = [Timed(clock), Timed(clock)]
    both = [ModelDrafter(name, model, 256, clock=clock) for name, model in zip("ab", models, strict=True)]
    node, fuser = DrafterNode(both, lambda _: None, "n", clock=clock), Fuser([], VOCAB, lambda _: None)

    def broken(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(models[0], "guess", broken)
    begin_drafts(node, fuser, [replace(job_of("r", [8]), drafters=("a",))])
    begin_drafts(node, fuser, [replace(job_of("s", [8]), drafters=("a", "b")), job_of("t", [8])])
    found = {}
    while node.is_drafting:
        found.update({tree.request_id: tree for _, tree in go_on_drafting(node, fuser)[1]})
    assert {request_id: bool(tree.tokens) for request_id, tree in found.items()} == {"r": False, "s": True, "t": False}
    assert fuser.wait_s(0.0) is None and found["s"].reports.keys() == {"b"}


def test_a_draft_of_a_text_that_has_gone_on_is_none() -> None:
    """The newer job is too long for this model, so that no tree takes the older one's place."""
    clock = Clock()
    model = Timed(clock)
    node, fuser = (
        DrafterNode([ModelDrafter("a", model, 10, clock=clock)], lambda _: None, "n", clock=clock),
        node_of(model, clock)[1],
    )
    begin_drafts(node, fuser, [job_of("r", [8, 8, 8, 8, 8, 8])])
    go_on_drafting(node, fuser)
    begin_drafts(node, fuser, [job_of("r", [8, 8, 8, 8, 8, 8, 9, 9])])
    (tree,) = [tree for _ in range(3) for _, tree in go_on_drafting(node, fuser)[1]]
    assert (tree.base, tree.tokens) == (8, ()) and not node.is_drafting


def test_what_needs_no_pass_waits_for_none() -> None:
    clock = Clock()
    node, fuser = node_of(clock)
    begin_drafts(node, fuser, [job_of("r", [8])])
    begin_drafts(node, fuser, [job_of("s", [8] * 254)])
    (sent,) = go_on_drafting(node, fuser)[1]
    assert (sent[1].request_id, clock.now_s) == ("s", 0.0)
