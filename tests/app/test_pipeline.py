import time

import pytest
import torch

from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.token_fusion import TokenFusion
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.errors import StoreUnavailable
from app.fuser.fuser import Fuser
from app.intake_zz import take_in
from app.messages import TARGET, DraftJob, Event, FinishReason, Status
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import GenerateRequest, Sampling, Speculation
from app.state import Guess
from app.store.memory import MemoryStore
from app.store.protocol import Outcome
from app.verifier import out_of_memory
from tests import fakes
from tests.fakes import PAGE_TOKENS, Book, Characters, Scripted, ScriptedGuesser, characters, record, said

PLAIN = fakes.tiny()
RUNNER = fakes.served()
PROMPTS = [[(i * 7 + salt) % 50 for i in range(10 + 9 * salt)] for salt in range(4)]
POISON = 57  # not among the tokens that a model is checked with at load


@pytest.fixture(autouse=True)
def _all_pages_come_back():
    yield
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    return fakes.alone(PLAIN, prompt, max_tokens)


def speculating(*names: str, **how) -> tuple[LocalPipeline, Book]:
    """A pipeline with drafters of these characters, and the book in which they read."""
    book = Book()
    return fakes.pipeline(how.pop("target", RUNNER), [characters(book)[name] for name in names], **how), book


class CountingGuesser(ModelGuesser):
    """One that counts the rows it reads."""

    rows = 0

    def guess(self, works, depth, floor):
        self.rows += sum(len(work.tokens) for work in works)
        return super().guess(works, depth, floor)


def job(
    request_id: str, tokens: list[int], drafters: tuple[str, ...] = ("a",), is_last: bool = False, due_s: float = 9
):
    return DraftJob(
        request_id=request_id,
        verifier="v",
        fuser="f",
        base=len(tokens),
        start=0,
        tokens=tuple(tokens),
        prompt_length=1,
        max_draft_tokens=4,
        drafters=drafters,
        sampling=Sampling(),
        due_s=due_s,
        is_last=is_last,
    )


def node(*drafters: Scripted, residents: tuple[Scripted, ...] = ()) -> DrafterNode:
    """A drafter node whose mailbox is `n`."""
    return DrafterNode(drafters, lambda _: None, Fuser(residents, fakes.VOCAB, lambda _: None), "n")


def guessing(name: str, *tokens: int, **rest) -> Scripted:
    return Scripted(name, lambda context: [said(context, name, tokens, **rest)])


class TestTakingIn:
    def test_a_request_is_written_down_as_admitted(self):
        store = MemoryStore()
        found = take_in(GenerateRequest(prompt="abc", max_tokens=5, seed=3), Characters(), store, Settings())
        assert store.snapshot(found.id).record == found
        assert (found.prompt_ids, found.max_tokens, found.sampling.seed) == ((0, 0, 1, 2, 1), 5, 3)

    def test_asking_again_under_the_same_id_changes_nothing(self):
        store, request = MemoryStore(), GenerateRequest(prompt="abc", temperature=1.0)
        first = take_in(request, Characters(), store, Settings(), request_id="x")
        assert take_in(request, Characters(), store, Settings(), request_id="x") == first, "the seed drawn first counts"
        assert store.active() == 1


class TestDrafting:
    def test_drafters_are_asked_where_they_are_wanted_and_for_the_newest_job_only(self):
        a, b = guessing("a", 1), guessing("b", 2)
        jobs = [job("r", [1]), job("s", [1, 2], ("a", "b")), job("r", [1, 5, 6])]
        drafts, trees = node(a, b).run(jobs)
        assert trees == []
        assert sorted((draft.request_id, draft.drafter, draft.base) for draft in drafts) == [
            ("r", "a", 3),
            ("s", "a", 2),
            ("s", "b", 2),
        ]

    def test_where_the_tables_are_sure_enough_no_model_is_run(self):
        model, table = guessing("a", 1, 3), guessing("b", 2, confidences=(0.7,))
        ours = node(model, residents=(table,))
        for base, enough, asked in ((1, 0.8, True), (2, 0.6, False), (3, 1.0, True)):
            model.seen.clear()
            wanted = job("r", [1] * base, ("a", "b")).model_copy(update={"fuser": "n", "skip_models_above": enough})
            ((_, tree),) = ours.run([wanted])[1]
            assert bool(model.seen) is asked
            assert tree.skipped == (() if asked else ("a",))
            assert 2 in tree.tokens
            assert (1 in tree.tokens) is asked

    def test_nobody_is_spared_where_another_node_fuses(self):
        model = guessing("a", 1)
        drafts, _ = node(model, residents=(guessing("b", 2),)).run(
            [job("r", [1], ("a", "b")).model_copy(update={"skip_models_above": 0.0})]
        )
        assert [draft.drafter for draft in drafts] == ["a"]

    def test_an_ended_sequence_gets_no_draft(self):
        a = guessing("a", 1)
        assert node(a).run([job("r", [1], is_last=True)]) == ([], [])
        assert a.seen == []

    def test_it_runs_ahead_on_what_is_pending_and_may_be_until_there_is_nothing_more_to_guess(self):
        model = ScriptedGuesser(lambda read: Guess((read[-1] + 1) % fakes.VOCAB, 0.9, 0, 0.0))
        one = node(ModelDrafter("a", model, 100), guessing("b", 2))
        one.run([job("r", [1]).model_copy(update={"run_ahead": True}), job("s", [1])])
        one.run([job("t", [1]).model_copy(update={"run_ahead": True}), job("t", [1], is_last=True)])
        model.calls.clear()
        steps = 0
        while one.has_ahead:
            one.run_ahead()
            steps += 1
            assert len(model.calls) <= steps, "one small step at a time"
        assert len(model.calls) == 4 + 1, "only r's: the target's own token, and as many as were asked for"
        one.run([job("r", [1, 2, 3, 4, 5, 6]), job("s", [1, 9])])
        assert one.ahead() == {"ahead_hits": 1, "ahead_misses": 0}

    def test_drafters_that_share_their_tokens_answer_each_in_their_own_name(self):
        models = [
            ModelDrafter(name, ScriptedGuesser(lambda read, at=at: Guess(read[-1] + at, at / 3, 0, 0.0)), 100)
            for at, name in ((1, "a"), (2, "b"))
        ]
        together = TokenFusion(model.reader for model in models)
        one = DrafterNode([*models, guessing("c", 9)], lambda _: None, Fuser([], 61, lambda _: None), "n", together)
        drafts, _ = one.run([job("r", [1], ("a", "b", "c"))])
        by_name = {draft.drafter: draft for draft in drafts}
        assert by_name["b"].tokens == (3, 5, 7, 9)
        assert [by_name["a"].tokens[node - 1] for node in by_name["a"].borrowed] == [3, 5, 7]
        assert by_name["b"].borrowed == by_name["c"].borrowed == ()
        one.run([job("r", [1, 3], ("a", "b"), is_last=True)])
        assert not together.run_ahead(["r"])

    def test_what_no_other_node_drafts_is_fused_on_the_spot_and_only_that(self):
        ours = job("r", [1], ("a", "b")).model_copy(update={"fuser": "n"})
        drafts, trees = node(guessing("a", 1, 3), residents=(guessing("b", 2),)).run([ours, job("s", [1])])
        assert [draft.request_id for draft in drafts] == ["s"]
        ((mailbox, tree),) = trees
        assert (mailbox, tree.request_id, tree.base) == ("v", "r", 1)
        assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]

    def test_a_node_that_fuses_learns_what_its_drafters_are_worth(self):
        ours = node(guessing("a", 7, confidences=(0.9,)))
        survivals = []
        for length in range(1, 30):
            ((_, tree),) = ours.run([job("r", [1] * length).model_copy(update={"fuser": "n"})])[1]
            survivals.append(tree.survival[0])
        assert survivals[0] == pytest.approx(0.9)
        assert survivals[-1] < 0.4

    def test_a_drafter_that_has_nothing_to_say_still_gets_its_verifier_an_answer(self):
        silent = Scripted("a", lambda context: [])
        ((_, tree),) = node(silent).run([job("r", [1]).model_copy(update={"fuser": "n"})])[1]
        assert tree.tokens == ()


class TestFusing:
    def test_residents_and_others_go_into_one_tree_for_the_jobs_verifier(self):
        fusing = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
        fusing.expect([job("r", [1, 1], ("a", "b"))])
        assert fusing.collect(0.0) == []
        fusing.receive(node(guessing("a", 1, 3)).run([job("r", [1, 1])])[0])
        ((mailbox, tree),) = fusing.collect(0.0)
        assert (mailbox, tree.request_id, tree.base) == ("v", "r", 2)
        assert sorted(zip(tree.tokens, tree.proposers, strict=True)) == [(1, ("a",)), (2, ("b",)), (3, ("a",))]

    def test_a_table_that_this_fusion_lacks_is_not_waited_for(self):
        fusing = Fuser([guessing("b", 2)], fakes.VOCAB, lambda _: None)
        fusing.expect([job("r", [1, 1], ("b", "phrases"))])
        ((_, tree),) = fusing.collect(0.0)
        assert tree.tokens == (2,)

    def test_a_due_round_makes_a_tree_of_what_there_is(self):
        fusing = Fuser([], fakes.VOCAB, lambda _: None)
        fusing.expect([job("r", [1, 1])])
        assert fusing.wait_s(4.0) == 5.0
        ((_, tree),) = fusing.collect(9.0)
        assert tree.tokens == ()

    def test_what_a_resident_says_of_others_is_dropped(self):
        fusing = Fuser([guessing("b", 2, request_id="nobody")], fakes.VOCAB, lambda _: None)
        fusing.expect([job("r", [1, 1], ("b",))])
        ((_, tree),) = fusing.collect(0.0)
        assert tree.tokens == ()

    def test_a_drafter_that_was_wrong_is_believed_less(self):
        fusing = Fuser([], fakes.VOCAB, lambda _: None)
        drafting = node(guessing("a", 7, confidences=(0.9,)))
        survivals = []
        for length in range(1, 30):
            fusing.expect([job("r", [1] * length)])
            fusing.receive(drafting.run([job("r", [1] * length)])[0])
            ((_, tree),) = fusing.collect(0.0)
            survivals.append(tree.survival[0])
        assert survivals[0] == pytest.approx(0.9)
        assert survivals[-1] < 0.4

    def test_an_ended_sequence_gets_no_tree(self):
        fusing = Fuser([], fakes.VOCAB, lambda _: None)
        fusing.expect([job("r", [1, 1])])
        fusing.expect([job("r", [1, 1, 1], is_last=True)])
        assert fusing.collect(99.0) == []


class TestVerifying:
    def test_only_active_requests_of_ones_own_are_adopted_and_each_once(self):
        local, _ = speculating()
        for name, owner in (("mine", "owner"), ("theirs", "other"), ("ended", "owner")):
            local.store.create(record(PROMPTS[0], 4, request_id=name), limit=9)
            local.store.assign(name, owner)
        local.store.end("ended", FinishReason.CANCELLED)
        for _ in range(2):
            local.verifier.adopt(["mine", "theirs", "ended", "unheard of"])
        assert list(local.verifier.running.sequences) == ["mine"]
        local.store.end("theirs", FinishReason.CANCELLED)
        fakes.finish(local)
        local.verifier.adopt(["mine"])
        assert local.verifier.running.sequences == {}

    def test_without_drafters_a_step_commits_one_token_of_each(self):
        local, _ = speculating()
        records = [record(prompt, 3, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
        fakes.submit(local, *records)
        for count in (1, 2, 3):
            local.step()
            assert [len(local.store.snapshot(one.id).tokens) for one in records] == [count] * 4

    def test_a_right_draft_is_committed_in_one_step(self):
        local, book = speculating("oracle")
        one = record(PROMPTS[0], 9)
        book.write(one, expected(PROMPTS[0], 9))
        fakes.submit(local, one)
        local.step()
        local.step()
        snapshot = local.store.snapshot(one.id)
        assert list(snapshot.tokens) == expected(PROMPTS[0], 9)
        assert (snapshot.stats.rounds, snapshot.stats.drafted, snapshot.stats.accepted) == (2, 7, 7)
        events = local.store.events(one.id, 0)
        assert events[1].proposers == ("oracle",) * 7 + (TARGET,)
        assert [one.id for one in local.verifier.ended] == [one.id]

    def test_a_sequence_waits_for_its_tree_until_it_is_due(self):
        local, _ = speculating("oracle")
        fakes.submit(local, record(PROMPTS[0], 9))
        verifying = local.verifier
        (asked,) = verifying.step(0.0)
        assert verifying.step(asked.due_s - 0.1) == []
        assert verifying.wait_s(asked.due_s - 0.1) == pytest.approx(0.1)
        assert verifying.running.sequences["r"].generated == 1
        verifying.step(asked.due_s)
        assert verifying.running.sequences["r"].generated == 2
        fakes.finish(local)

    def test_a_stale_tree_is_not_waited_for_nor_verified(self):
        local, book = speculating("oracle")
        one = record(PROMPTS[0], 9)
        book.write(one, expected(PROMPTS[0], 9))
        fakes.submit(local, one)
        (asked,) = local.verifier.step(0.0)
        local.verifier.step(asked.due_s)
        _, trees = local._node.run([asked])
        local.verifier.receive(tree for _, tree in trees)
        assert local.verifier.running.sequences["r"].tree is None
        fakes.finish(local)

    @pytest.mark.parametrize("outcome", [Outcome.STALE, Outcome.FENCED, Outcome.ENDED])
    def test_a_sequence_that_is_no_longer_ours_is_let_go(self, outcome):
        is_dead = []
        store = MemoryStore(is_alive=lambda owner: owner not in is_dead)
        local, book = speculating("shy", store=store)
        gone, stays = record(PROMPTS[0], 12, request_id="gone"), record(PROMPTS[1], 12, request_id="stays")
        for one in (gone, stays):
            book.write(one, expected(list(one.prompt_ids), 12))
        fakes.submit(local, gone, stays)
        local.step()
        assert local.verifier.running.sequences["gone"].tree.parents[:2] == [0, 0], "side branches are in flight"
        text = expected(PROMPTS[0], 12)
        if outcome is Outcome.STALE:
            store.commit("owner", [("gone", Event(offset=1, tokens=(text[1],), proposers=(TARGET,)))])
        elif outcome is Outcome.FENCED:
            is_dead.append("owner")
            store.assign("gone", "other")
        else:
            store.end("gone", FinishReason.CANCELLED)
        local.verifier.step(float("inf"))
        jobs = local.verifier.step(float("inf"))  # hears what became of the last one's commit
        assert "gone" not in local.verifier.running.sequences
        assert [one.id for one in local.verifier.ended] == ["gone"]
        assert [one.request_id for one in jobs if one.is_last] == ["gone"]
        held = [page for s in local.verifier.running.sequences.values() for page in s.kv.pages]
        assert RUNNER.pool.num_free == RUNNER.pool.num_pages - len(held), "the tree's pages came back too"
        if outcome is Outcome.FENCED:
            is_dead[:] = ["other"]
            store.assign("gone", "owner")
        local.verifier.adopt(["gone"])
        fakes.finish(local)
        assert list(store.snapshot("stays").tokens) == expected(PROMPTS[1], 12)
        if outcome is not Outcome.ENDED:
            assert list(store.snapshot("gone").tokens) == text, "whoever goes on with it says the same"

    def test_a_commit_that_was_fenced_is_nothing_to_a_sequence_taken_up_anew_since(self):
        is_dead = {"owner"}
        store = MemoryStore(is_alive=lambda owner: owner not in is_dead)
        local, _ = speculating(store=store)
        fakes.submit(local, record(PROMPTS[0], 6))
        local.step()
        store.assign("r", "other")
        local.step()  # sends a commit that is fenced
        local.verifier.release(["r"])
        is_dead.add("other")
        store.assign("r", "owner")
        local.verifier.adopt(["r"])
        anew = local.verifier.running.sequences["r"]
        local.step()  # hears of it
        assert local.verifier.running.sequences["r"] is anew and not local.verifier.ended
        fakes.finish(local)
        assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 6)
        assert [one.id for one in local.verifier.ended] == ["r"]

    def test_a_store_that_does_not_answer_costs_a_step_and_no_memory(self):
        class Failing(MemoryStore):
            fails = False

            def commit(self, owner, events):
                if self.fails:
                    raise StoreUnavailable("gone for a while")
                return super().commit(owner, events)

        store = Failing()
        local, book = speculating("shy", store=store)
        one = record(PROMPTS[0], 12)
        book.write(one, expected(PROMPTS[0], 12))
        fakes.submit(local, one)
        local.step()
        store.fails = True
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                local.step()
        store.fails = False
        fakes.finish(local)
        assert list(store.snapshot("r").tokens) == expected(PROMPTS[0], 12)

    @pytest.mark.parametrize("error", [RuntimeError, MemoryError, IndexError, ValueError, ZeroDivisionError])
    def test_a_request_on_which_the_target_fails_ends_alone(self, error, monkeypatch):
        monkeypatch.setattr(out_of_memory, "PATIENCE_S", 0.2)  # without memory it is tried again for a while
        local, book = speculating("shy", target=Fragile(error))
        records = [record(prompt, 8, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
        poison = record([1, POISON, 2], 8, request_id="poison")
        for one in records:
            book.write(one, expected(list(one.prompt_ids), 8))
        fakes.submit(local, *records[:2])
        local.step()
        fakes.submit(local, poison, *records[2:])
        fakes.finish(local)
        snapshot = local.store.snapshot("poison")
        assert (snapshot.status, snapshot.finish_reason) == (Status.FAILED, FinishReason.ERROR)
        assert "the target failed on this request" in snapshot.error
        for one in records:
            snapshot = local.store.snapshot(one.id)
            assert (snapshot.status, snapshot.error) == (Status.DONE, None)
            assert list(snapshot.tokens) == expected(list(one.prompt_ids), 8)
        assert sorted(one.id for one in local.verifier.ended) == ["poison", "r0", "r1", "r2", "r3"]
        assert not local.verifier.running.suspects

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            RuntimeError("could not create a primitive"),
        ],
    )
    def test_without_memory_a_batch_is_split_and_tried_again_until_there_is_some(self, error, monkeypatch):
        monkeypatch.setattr(out_of_memory, "PAUSE_S", 0.0)
        local, book = speculating("shy", target=(starved := Starved(error)))
        records = [record(prompt, 8, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
        for one in records:
            book.write(one, expected(list(one.prompt_ids), 8))
        fakes.submit(local, *records)
        local.step()
        starved.steps = 12
        fakes.finish(local)
        assert starved.steps == 0 and 1 in starved.sizes and max(starved.sizes) > 1
        for one in records:
            snapshot = local.store.snapshot(one.id)
            assert (snapshot.status, list(snapshot.tokens)) == (Status.DONE, expected(list(one.prompt_ids), 8))

    def test_who_finds_no_memory_for_long_tells_and_the_request_is_not_blamed(self, monkeypatch):
        monkeypatch.setattr(out_of_memory, "PATIENCE_S", 0.0)
        local, book = speculating("shy", target=(starved := Starved(MemoryError())))
        book.write(one := record(PROMPTS[0], 8), expected(PROMPTS[0], 8))
        fakes.submit(local, one)
        told = []
        local.verifier.exhausted = lambda: told.append(starved.steps)
        starved.steps = 2
        fakes.finish(local)
        assert told and list(local.store.snapshot("r").tokens) == expected(PROMPTS[0], 8)

    def test_a_request_that_is_let_go_and_comes_back_has_patience_anew(self, monkeypatch):
        monkeypatch.setattr(out_of_memory, "PATIENCE_S", 0.2)
        local, book = speculating("shy", target=(starved := Starved(MemoryError())))
        book.write(one := record(PROMPTS[0], 8), expected(PROMPTS[0], 8))
        told = []
        local.verifier.exhausted = lambda: told.append(one)
        fakes.submit(local, one)
        starved.steps = 2
        local.step()
        local.verifier.release(["r"])
        time.sleep(0.25)
        local.verifier.adopt(["r"])
        fakes.finish(local)
        assert not told and starved.steps == 0

    def test_who_fails_for_anything_else_is_blamed_and_no_want_of_memory_is_told(self):
        local, _ = speculating(target=Fragile(RuntimeError))
        told = []
        local.verifier.exhausted = lambda: told.append("verifier")
        poison, good = record([1, POISON, 2], 8, request_id="poison"), record(PROMPTS[0], 8, request_id="good")
        assert fakes.texts(local, poison, good) == [[], expected(PROMPTS[0], 8)]
        assert not told and local.store.snapshot("poison").status is Status.FAILED

    def test_no_tree_is_waited_for_longer_than_the_policy_says_though_the_clock_was_put_back(self):
        local, book = speculating("shy")
        one = record(PROMPTS[0], 12)
        book.write(one, expected(PROMPTS[0], 12))
        fakes.submit(local, one)
        (asked,) = local.verifier.step(0.0)
        long_ago_s = asked.due_s - 3600.0
        assert local.verifier.wait_s(long_ago_s) <= local.verifier.policy.draft_wait_s
        fakes.finish(local)

    def test_a_request_whose_logits_are_not_numbers_ends_alone(self):
        local, _ = speculating(target=NotANumber())
        good = record(PROMPTS[0], 5, request_id="good", sampling=Sampling(temperature=0.5, seed=1))
        poison = record([POISON, 2], 5, request_id="poison", sampling=Sampling(temperature=0.5, top_p=0.9, seed=1))
        alone, _ = speculating()
        assert fakes.texts(local, good, poison) == [*fakes.texts(alone, good), []]
        assert local.store.snapshot("poison").status is Status.FAILED

    @pytest.mark.parametrize("prompt_length", [3, 40])
    def test_numbers_that_overflow_do_not_reach_those_who_come_after(self, prompt_length):
        """Masked or not, a slot that is not a number makes every sum over its page one."""
        model = fakes.tiny()
        with torch.no_grad():
            model.model.embed_tokens.weight[POISON] = torch.inf
        local, _ = speculating(target=fakes.runner(choose_forward(model), pages=8))
        poison = record([POISON] * prompt_length, 5, request_id="poison")
        beside, after = record(PROMPTS[1], 5, request_id="beside"), record(PROMPTS[3], 5, request_id="after")
        assert fakes.texts(local, poison, beside) == [[], expected(PROMPTS[1], 5)]
        assert local.store.snapshot("poison").status is Status.FAILED
        assert fakes.texts(local, after) == [expected(PROMPTS[3], 5)], "though it gets pages that were the poison's"

    def test_a_suspect_runs_alone_until_it_has_committed(self):
        batches = []

        class Watched(Relay):
            def forward(self, works):
                batches.append(sorted(work.sequence.id for work in works))
                return super().forward(works)

        store = MemoryStore(is_alive=lambda owner: owner != "dead")
        local, _ = speculating(target=Watched(), store=store)
        store.create(record(PROMPTS[0], 3, request_id="suspect"), limit=9)
        store.assign("suspect", "dead")
        store.assign("suspect", "owner")
        fakes.submit(local, record(PROMPTS[1], 3, request_id="other"))
        local.verifier.adopt(["suspect"])
        fakes.finish(local)
        first = next(i for i, batch in enumerate(batches) if "suspect" in batch)
        assert batches[first] == ["suspect"]
        assert ["other", "suspect"] in batches[first + 1 :]

    def test_a_request_let_go_from_outside_leaves_nothing_behind(self):
        local, _ = speculating("random")
        fakes.submit(local, record(PROMPTS[0], 50))
        local.step()
        local.verifier.release(["r", "unheard of"])
        assert local.verifier.running.sequences == {}
        local.store.end("r", FinishReason.CANCELLED)

    def test_no_more_than_max_sequences_run_at_once_and_all_get_their_turn(self):
        sizes = []

        class Watched(Relay):
            def forward(self, works):
                sizes.append(len(works))
                return super().forward(works)

        local, _ = speculating(target=Watched(), max_sequences=2)
        records = [record(PROMPTS[0], 2, request_id=f"r{i}", created_s=float(i)) for i in range(5)]
        assert fakes.texts(local, *records) == [expected(PROMPTS[0], 2)] * 5
        assert max(sizes) == 2

    def test_long_prompts_are_read_beside_running_sequences(self):
        local, _ = speculating(policy=Policy(max_batch_tokens=32, prefill_chunk_tokens=16))
        short, long = record(PROMPTS[0], 12, request_id="short"), record(list(range(50)) * 2, 3, request_id="long")
        fakes.submit(local, short)
        local.step()
        fakes.submit(local, long)
        local.step()
        assert 0 < local.verifier.running.sequences["long"].cached < 100
        assert local.verifier.running.sequences["short"].generated == 2
        fakes.finish(local)
        assert list(local.store.snapshot("long").tokens) == expected(list(range(50)) * 2, 3)

    def test_after_a_pause_drafts_are_as_right_as_before(self):
        """What drafters were not asked about meanwhile they catch up with, though they read only what is new."""
        guesser = CountingGuesser(RUNNER.model, None, kv_bytes=2**20, page_tokens=PAGE_TOKENS)
        local = fakes.pipeline(RUNNER, [ModelDrafter("twin", guesser, 512)])
        record = fakes.record(range(1, 9), 240, request_id="r")
        fakes.submit(local, record)

        def right(tokens: int, policy: Policy) -> tuple[int, float]:
            """Of the next tokens under a policy: draft tokens verified, and the part of them that was right."""
            local.verifier.policy = policy
            before = local.store.snapshot("r")
            while len(local.store.snapshot("r").tokens) < len(before.tokens) + tokens:
                local.step()
            after = local.store.snapshot("r").stats
            drafted = after.drafted - before.stats.drafted
            return drafted, (after.accepted - before.stats.accepted) / max(1, drafted)

        steady = Policy(min_draft_tokens=4, max_draft_tokens=4)
        drafted, before = right(60, steady)
        assert drafted > 30 and before > 0.6, "it has the target's own weights; second guesses are wrong"
        assert right(60, Policy(max_draft_tokens=0)) == (0, 0.0)
        guesser.rows = 0
        assert right(10, steady)[1] == pytest.approx(before, abs=0.2)
        assert 60 < guesser.rows < 120, "what it missed, and what it guessed; not all from the beginning"
        assert right(60, steady)[1] == pytest.approx(before, abs=0.1)
        fakes.finish(local)
        assert local.store.snapshot("r").tokens == tuple(expected(list(range(1, 9)), 240))

    def test_a_request_that_wants_no_speculation_gets_none(self):
        local, book = speculating("oracle")
        records = [
            record(PROMPTS[0], 6, request_id=f"r{i}", speculation=wish)
            for i, wish in enumerate((Speculation(enabled=False), Speculation(drafters=("nobody",)), Speculation()))
        ]
        for one in records:
            book.write(one, expected(PROMPTS[0], 6))
        assert fakes.texts(local, *records) == [expected(PROMPTS[0], 6)] * 3
        assert [local.store.snapshot(one.id).stats.drafted > 0 for one in records] == [False, False, True]


class TestLocal:
    def test_events_follow_each_other_and_end_with_the_last(self):
        local, book = speculating("half")
        one = local.submit(GenerateRequest(prompt="abcd", max_tokens=20), Settings())
        book.write(one, expected(list(one.prompt_ids), 20))
        events = list(local.events(one))
        assert [event.offset for event in events] == [
            sum(len(event.tokens) for event in events[:i]) for i in range(len(events))
        ]
        assert [token for event in events for token in event.tokens] == expected(list(one.prompt_ids), 20)
        assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [FinishReason.LENGTH]
        assert any(len(event.tokens) == 3 for event in events)

    def test_an_end_token_inside_a_draft_ends_the_text_there(self):
        text = expected(PROMPTS[0], 12)
        at = next(i for i in range(3, 12) if text[i] not in text[:i])
        for name in ("oracle", "silent"):
            local, book = speculating(name)
            one = record(PROMPTS[0], 12, eos_ids=(text[at],))
            book.write(one, text)
            assert fakes.texts(local, one) == [text[: at + 1]]
            assert local.store.snapshot("r").finish_reason is FinishReason.STOP


def is_poisoned(work) -> bool:
    """No prompt is shorter than this, and none has the poison later."""
    return POISON in work.sequence.tokens[:2]


class Relay:
    """A target in front of the tiny model."""

    capacity_tokens = RUNNER.capacity_tokens
    free_tokens = 0

    def try_reserve(self, work):
        return RUNNER.try_reserve(work)

    def release(self, sequence):
        RUNNER.release(sequence)

    def adopt(self, sequence):
        return RUNNER.adopt(sequence)

    def forward(self, works):
        return RUNNER.forward(works)

    def cover(self, sequence, tokens):
        RUNNER.cover(sequence, tokens)

    def accept(self, work, path):
        RUNNER.accept(work, path)

    def drop(self, work):
        RUNNER.drop(work)

    def invalidate(self, work):
        RUNNER.invalidate(work)


class Fragile(Relay):
    """A target on which one prompt brings a whole batch down."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def forward(self, works):
        if any(is_poisoned(work) for work in works):
            raise self._error("out of something")
        return super().forward(works)


class Starved(Relay):
    """A target that finds no memory for some steps."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.steps = 0
        self.sizes: list[int] = []

    def forward(self, works):
        if self.steps:
            self.steps -= 1
            self.sizes.append(len(works))
            raise self._error
        return super().forward(works)


class NotANumber(Relay):
    """A target that computes nonsense for one prompt."""

    def forward(self, works):
        logits = super().forward(works)
        for work, rows in zip(works, logits, strict=True):
            if rows is not None and is_poisoned(work):
                rows.rows = torch.full_like(rows.rows, torch.nan)
        return logits


def test_the_poison_is_in_no_other_prompt():
    assert all(POISON not in prompt for prompt in PROMPTS)
    assert PAGE_TOKENS * RUNNER.pool.num_pages > 500
