"""Test the simulation of drafters and verifiers on machines of their own, over a small recording made by hand."""

import json
from collections import deque
from typing import Any

import pytest

from app.plans import PLANS
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import build as model_free
from lab.report import summary
from lab.simulate.events import Machine, Network
from lab.simulate.log import DrafterLog, Log, Text, with_stated_drafters
from lab.simulate.machines import FUSE_S, build
from lab.simulate.models import SimClock
from lab.simulate.world import Setting
from lab.ways import OFF, PACE, WAYS, Variant, fixed
from tests.lab.simulate.made import LENGTH, STEP_S, TOKEN_S, made_log, model, run, unsure

PLAIN = WAYS[OFF]


@pytest.fixture
def log() -> Log:
    return made_log()


def test_mail_that_comes_during_work_is_taken_when_that_ends() -> None:
    network, seen = Network(hop_s=1.0), []
    clock = SimClock()

    def handle(mail: list[str]) -> float | None:
        seen.append((clock.time(), mail))
        if mail:
            clock.now_s += 5.0
        return 100.0  # where nothing comes

    network.add(machine := Machine("a", clock, handle))
    network.send("a", "first", 0.0)
    network.send("a", "second", 2.0)
    network.run(lambda: len(seen) == 3)
    assert seen == [(1.0, ["first"]), (6.0, ["second"]), (111.0, [])]
    assert machine.busy_s == 10.0


def test_without_drafts_every_token_is_a_step(log: Log) -> None:
    found = run(log, PLAIN, streams=1)
    assert found.tokens_a_round == 1.0
    assert found.tokens / found.seconds == pytest.approx(1.0 / STEP_S)
    assert found.world.verifiers[0].target.busy_s == pytest.approx(found.seconds)


def test_a_chain_costs_its_hops_its_tokens_and_its_rows(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    found = run(only, fixed("coder", 3), streams=1, hop_s=0.004)
    rounds = 10  # 39 tokens after the first, four a round; the last one asks for what there is room for
    assert found.tokens_a_round == pytest.approx(LENGTH / (rounds + 1))
    step_s = STEP_S * (1 + 3 / 63)
    assert found.seconds == pytest.approx(STEP_S + rounds * (2 * 0.004 + 3 * TOKEN_S + step_s), rel=0.02)


def test_a_fixed_length_is_drafted_and_verified_whole_however_unsure_the_drafter(log: Log) -> None:
    """The rule of marginal gain has drafters stop where a guess is unlikely; speculation as published does not."""
    prose = log.model_copy(update={"texts": log.texts[1:2], "drafters": {"coder": unsure(log.texts[1:2])}})
    whole = run(prose, fixed("coder", 6), streams=1)
    rounds = [0] + [min(6, LENGTH - 1 - done) for done in range(1, LENGTH)]  # one token each; the last have less room
    assert sum(end.stats.drafted for end in whole.ends) == sum(rounds)


def test_a_stated_drafter_takes_its_time_in_any_batch(log: Log) -> None:
    stated = with_stated_drafters(log, STEP_S)
    for streams in (1, 4):
        plain = run(stated, PLAIN, streams=streams).seconds
        found = run(stated, fixed("coder", 1), streams=streams, hop_s=0.0)
        own = run(log, fixed("coder", 1), streams=streams, hop_s=0.0)
        assert own.seconds < found.seconds, f"a guess takes {STEP_S / TOKEN_S:.0f} times as long"
        assert found.seconds < 2.5 * plain, "one guess for all is one step more"


def test_drafts_of_several_nodes_go_by_the_fusion(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    both = Variant("", {"routing": "all", "overlap": "none"}, model_free=())
    world = build(only, both, Setting(streams=1, hop_s=0.004), model_free)
    world.run()
    one = build(only, model("coder"), Setting(streams=1, hop_s=0.004), model_free)
    one.run()
    assert world.network.machines["fuse"].busy_s >= FUSE_S
    assert one.network.machines["fuse"].busy_s == 0.0
    assert world.store.snapshot("0").tokens == one.store.snapshot("0").tokens == log.texts[0].tokens


def test_every_plan_commits_the_texts_and_a_seed_repeats_figures(log: Log) -> None:
    for way in (WAYS[PACE], *(Variant("", {"plan": plan}) for plan in PLANS)):
        first, second = (run(log, way, streams=3, seed=1) for _ in range(2))
        assert first.seconds == second.seconds
        assert [end.stats for end in first.ends] == [end.stats for end in second.ends]
        ends = {end.record.id: end.tokens for end in first.ends}
        assert [ends[str(i)] for i in range(8)] == [text.tokens for text in log.texts]


def test_a_router_finds_the_expert_of_each_text(log: Log) -> None:
    seconds = {way.name: run(log, way, streams=2).seconds for way in (PLAIN, fixed("coder", 6), WAYS[PACE])}
    assert seconds["coder x 6"] > 1.3 * seconds[PACE]
    assert seconds[OFF] > 1.3 * seconds[PACE]


def test_sharing_a_token_takes_two_hops_and_the_slowest_drafter(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    together = Variant("", {"plan": "specinfer", "fusion": "token", "lengths": "tree:3"})
    found = run(only, together, streams=1, hop_s=0.003)
    rounds = 10  # of 4 tokens, after the first one's
    hops = 1 + 3 + 2 + 1  # the jobs, each guess, the path after all but the last, and the tree
    step_s = STEP_S * (1 + 5 / 63)  # a chain, and beside it what the other one said
    assert found.tokens_a_round == pytest.approx(LENGTH / (rounds + 1))
    assert found.seconds == pytest.approx(STEP_S + rounds * (hops * 0.003 + 3 * TOKEN_S + step_s), rel=0.03)


def test_a_slower_verifier_makes_more_drafting_pay(log: Log) -> None:
    slow = run(log, model("coder"), streams=1, slowdown=20.0, hop_s=0.02)
    fast = run(log, model("coder"), streams=1, slowdown=0.2, hop_s=0.02)
    assert slow.tokens_a_round > 1.2 * fast.tokens_a_round


def test_two_verifiers_share_the_texts(log: Log) -> None:
    log = log.model_copy(update={"costs": json.dumps({"points": [[1, STEP_S]], "ratio": 1.0})})  # a row
    one = run(log, PLAIN, streams=4)
    two = run(log, PLAIN, streams=4, verifiers=2)
    assert one.seconds > 1.5 * two.seconds


def test_the_model_free_drafters_are_the_real_ones(log: Log) -> None:
    """Look up a text that repeats itself."""
    text = Text(domain="code", prompt_ids=(1,), tokens=(5, 6, 7, 8, 9, 10, 11, 12) * 5)
    nothing = DrafterLog(guesses=(((),) * LENGTH,), token_s={1: TOKEN_S})
    again = log.model_copy(update={"texts": (text,), "drafters": {"coder": nothing}})
    looked_up: list[Drafter] = model_free()
    assert {"lookup", "suffix"} <= {drafter.name for drafter in looked_up}
    assert run(again, Variant("", drafters=()), streams=1).tokens_a_round > 1.5


def loaded(log: Log, way: Variant, setting: Setting, arrivals_s: list[float]) -> dict[str, Any]:
    """Return the figures of requests that come at these seconds."""
    world = build(log, way, setting, model_free)
    texts = [*world.waiting]
    world.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(len(arrivals_s)))
    world.run(arrivals_s)
    return summary(world.ends)


def test_requests_at_times_of_their_own_wait_for_a_busy_verifier(log: Log) -> None:
    setting = Setting(streams=1, is_local=True)
    calm, busy = (loaded(log, PLAIN, setting, at_s) for at_s in ([0.0, 5.0, 10.0], [0.0] * 64))
    assert calm["request_s"] == pytest.approx(LENGTH * STEP_S, rel=0.02)
    assert calm["first_token_s"] == pytest.approx(STEP_S, rel=0.02)
    assert busy["request_s"] > 1.5 * calm["request_s"]


def test_the_adaptive_length_is_near_the_longest_where_rows_are_cheap(log: Log) -> None:
    moments, setting = [0.5 * i for i in range(24)], Setting(streams=1, is_local=True)
    lengths = [Variant(f"fixed {n}", {"overlap": "none"}, length=n) for n in (1, 3, 7)]
    ways = (PLAIN, WAYS[PACE], *lengths)
    total_s = {way.name: loaded(log, way, setting, moments)["request_s"] for way in ways}
    fixed_s = [total_s[way.name] for way in lengths]
    assert total_s["fixed 7"] == min(fixed_s) < 0.6 * total_s[OFF]
    assert total_s[PACE] < 1.05 * min(fixed_s)


def test_nodes_on_one_core_wait_for_each_other_and_on_two_not(log: Log) -> None:
    shared, two, own = (run(log, WAYS["specinfer"], streams=1, cores=cores) for cores in (1, 2, 0))
    rounds = shared.rounds - len(shared.ends)
    assert shared.seconds - own.seconds == pytest.approx(rounds * 4 * TOKEN_S, rel=0.3)
    assert two.seconds == pytest.approx(own.seconds), "a core for each of the two nodes"


def test_a_drafter_that_brings_nothing_is_asked_in_trials_alone(log: Log) -> None:
    same = log.model_copy(update={"drafters": dict.fromkeys(log.drafters, log.drafters["coder"])})
    found = run(same, Variant("", model_free=()), streams=1, cores=1, jobs_s=0.01)
    asked = found.world.verifiers[0].segment.speculation.router.asked_rounds
    assert min(asked.values()) < 0.3 * max(asked.values())


def test_python_is_charged_where_it_runs(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    tables = Variant("", drafters=())  # which do not draft in each round

    def slower(way: Variant, **more: float) -> tuple[float, int]:
        found, free = run(only, way, streams=1, **more), run(only, way, streams=1)
        assert found.tokens_a_round == free.tokens_a_round, "the same rounds"
        return found.seconds - free.seconds, found.rounds - 1

    for way, costs in (
        (PLAIN, {"host_s": 0.001}),
        (fixed("coder", 3), {"jobs_s": 0.001}),
        (tables, {"here_s": 0.001}),
        (Variant("", {"plan": "faser", "lengths": "fixed:3"}), {"search_s": 0.001}),
    ):
        seconds, rounds = slower(way, **costs)
        assert 0.3 < seconds / (0.001 * rounds) < 1.15, costs
    assert slower(WAYS["specinfer"], mail_s=0.001, cores=1)[0] > 1.5 * slower(fixed("coder", 3), mail_s=0.001)[0]


def test_a_node_that_calls_a_store_elsewhere_takes_mail_a_trip_later() -> None:
    network, seen = Network(hop_s=1.0), []
    clock = SimClock()

    def handle(mail: list[str]) -> float | None:
        seen.append((clock.time(), mail))
        clock.now_s += 5.0
        return None

    network.add(Machine("node", clock, handle, calls_s=4.0))
    for at_s in (10.0, 12.0, 40.0):
        network.send("node", "job", at_s)
    network.run(lambda: len(seen) == 3)
    assert seen == [(11.0, ["job"]), (20.0, ["job"]), (41.0, ["job"])], "posted and asked, and at once when idle"
