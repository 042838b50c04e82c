"""Test the simulation of drafters and verifiers on machines of their own, over a small log made by
hand."""

import json
from pathlib import Path

import pytest

from app.plans import PLANS
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import build as model_free
from app.state import Guess
from lab.cooperate.variants import FULL, MODELS_ASKED, OFF, Variant, fixed, overlaps
from lab.simulate.events import Machine, Network
from lab.simulate.experts import homes_of, with_experts
from lab.simulate.load import arms, load
from lab.simulate.log import DEPTH, DrafterLog, Log, Text, with_stated_drafters
from lab.simulate.machines import FUSE_S, build
from lab.simulate.models import LogGuesser, SimClock
from lab.simulate.run import Outcome, acceptance, main, matrix, outcomes_of, parse_args, simulate, table, ways
from lab.simulate.world import Setting

STEP_S, TOKEN_S, VOCAB = 0.05, 0.001, 2000
COSTS = json.dumps({"points": [[1, STEP_S], [64, 2 * STEP_S]], "ratio": 1.0})
LENGTH = 40


def chain(tokens: tuple[int, ...], confidence: float) -> tuple[Guess, ...]:
    return tuple(Guess(token, confidence, token + 1, 0.0) for token in tokens)


def expert(texts: list[Text], domain: str, confidence: float = 0.9) -> DrafterLog:
    """Make a drafter that is right in its domain, and elsewhere wrong and less confident."""
    guesses = tuple(
        tuple(
            chain(text.tokens[i : i + DEPTH], confidence)
            if text.domain == domain
            else chain((999,) * DEPTH, confidence / 3)
            for i in range(len(text.tokens))
        )
        for text in texts
    )
    return DrafterLog(guesses=guesses, token_s={1: TOKEN_S, 8: 2 * TOKEN_S}, read_s=TOKEN_S / 10)


def unsure(texts: list[Text]) -> DrafterLog:
    """Make a drafter whose every guess is wrong and has little confidence."""
    return expert(texts, "none", confidence=0.3)


@pytest.fixture
def log() -> Log:
    texts = [
        Text(domain=domain, prompt_ids=(1,), tokens=tuple(range(100 * i, 100 * i + LENGTH)))
        for i, domain in enumerate(("code", "prose") * 4, start=1)
    ]
    drafters = {"coder": expert(texts, "code"), "writer": expert(texts, "prose")}
    return Log(costs=COSTS, vocab_size=VOCAB, texts=tuple(texts), drafters=drafters)


def run(log: Log, variant: Variant, **setting: float) -> Outcome:
    return simulate(log, variant, Setting(**setting), model_free)  # type: ignore[arg-type]


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


def model(name: str) -> Variant:
    return Variant(name, drafters=(name,), model_free=())


def test_the_command_writes_the_figures_of_each_setting(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PHRASES", "none")
    monkeypatch.setattr("lab.simulate.run.with_target", lambda log: log)
    recording, out = tmp_path / "log.json.gz", tmp_path / "out.json"
    log.write(recording)
    words = ["--slowdown", "1", "--streams", "2", "--ways", OFF, "vanilla", "--generalist", "coder", "--repeats", "2"]
    assert main(["replay", "--log", str(recording), "--out", str(out), *words]) == 0
    found = json.loads(out.read_text())
    assert found["texts"] == 2 * len(log.texts)
    (setting,) = found["settings"]
    assert setting["streams"] == 2 and setting["ways"].keys() == {OFF, "vanilla"}
    assert setting["ways"][OFF]["tokens_per_s"] == pytest.approx(2 / STEP_S, rel=0.05)


def test_an_arm_tells_in_how_many_rounds_models_were_asked(log: Log) -> None:
    setting = Setting(streams=1)
    ways = [Variant(OFF, speculates=False), fixed("coder", 3, "vanilla"), Variant("specinfer", {"plan": "off"})]
    outcomes = outcomes_of(log, ways, setting, model_free)
    assert outcomes[OFF].model_rounds == 0.0
    assert outcomes["vanilla"].model_rounds > MODELS_ASKED, "in all but a text's last rounds"
    shown = table(setting, outcomes)
    assert "| vanilla |" in shown and "| specinfer (models in 0% of rounds) |" in shown


def test_without_drafts_every_token_is_a_step(log: Log) -> None:
    found = run(log, Variant(OFF, speculates=False), streams=1)
    assert found.accepted_length == 1.0
    assert found.tokens_per_s == pytest.approx(1.0 / STEP_S)
    assert found.verifier_busy == pytest.approx(1.0)


def test_a_chain_costs_its_hops_its_tokens_and_its_rows(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    found = run(only, fixed("coder", 3), streams=1, hop_s=0.004)
    rounds = 10  # 39 tokens after the first, four a round; the last one asks for what there is room for
    assert found.accepted_length == pytest.approx(LENGTH / (rounds + 1))
    step_s = STEP_S * (1 + 3 / 63)
    assert found.seconds == pytest.approx(STEP_S + rounds * (2 * 0.004 + 3 * TOKEN_S + step_s), rel=0.02)


def test_a_fixed_length_is_drafted_and_verified_whole_however_unsure_the_drafter(log: Log) -> None:
    """The rule of marginal gain has drafters stop where a guess is unlikely; speculation as published does not."""
    prose = log.model_copy(update={"texts": log.texts[1:2], "drafters": {"coder": unsure(log.texts[1:2])}})
    whole = run(prose, fixed("coder", 6), streams=1)
    rounds = [0] + [min(6, LENGTH - 1 - done) for done in range(1, LENGTH)]  # one token each; the last have less room
    assert whole.drafted == pytest.approx(sum(rounds) / len(rounds))


def test_a_stated_drafter_takes_its_time_in_any_batch(log: Log) -> None:
    stated = with_stated_drafters(log, STEP_S)
    for streams in (1, 4):
        plain = run(stated, Variant(OFF, speculates=False), streams=streams).seconds
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


def test_every_way_commits_the_texts_and_a_seed_repeats_figures(log: Log) -> None:
    setting = Setting(streams=3, seed=1)
    first, second = (outcomes_of(log, ways(log, setting, "coder", model_free), setting, model_free) for _ in range(2))
    assert first == second
    assert {"full", "cosine", "specinfer", "without routing"} <= first.keys()
    for way in (Variant(""), *(Variant("", {"plan": plan}) for plan in PLANS)):
        world = build(log, way, Setting(streams=3), model_free)
        world.run()
        assert [world.store.snapshot(str(i)).tokens for i in range(8)] == [text.tokens for text in log.texts]


def test_a_router_finds_the_expert_of_each_text(log: Log) -> None:
    setting = Setting(streams=2)
    outcomes = outcomes_of(log, [*ways(log, setting, "coder", model_free), *overlaps()], setting, model_free)
    assert outcomes["full"].tokens_per_s > 1.3 * outcomes["best single"].tokens_per_s
    assert outcomes["full"].tokens_per_s > 1.3 * outcomes[OFF].tokens_per_s


def test_the_matrix_has_each_drafter_at_home_and_the_bound_of_all(log: Log) -> None:
    found = matrix(log)
    most = LENGTH / -(-(LENGTH - 1) // (DEPTH + 1)) if DEPTH < LENGTH else LENGTH
    assert found["coder"]["code"] == found["any"]["code"] == found["any"]["all"] == pytest.approx(most, rel=0.03)
    assert found["coder"]["prose"] == found["writer"]["code"] == 1.0


def test_made_experts_are_as_right_as_stated_and_their_mistakes_correlate(log: Log) -> None:
    long = [Text(domain=t.domain, prompt_ids=(1,), tokens=tuple(range(1500))) for t in log.texts[:2]]
    drafters = {name: expert(long, home) for name, home in (("coder", "code"), ("writer", "prose"), ("both", "none"))}
    many = log.model_copy(update={"texts": tuple(long), "drafters": drafters})
    homes = homes_of(acceptance(many), "both")
    assert homes == {"code": "coder", "prose": "writer"}
    for shared in (0.0, 0.6):
        made = with_experts(many, 0.7, 0.3, homes, "both", 1, shared)
        found = acceptance(made)
        assert found["coder"] == pytest.approx({"code": 0.7, "prose": 0.3}, abs=0.06)
        assert found["both"] == pytest.approx({"code": 0.5, "prose": 0.5}, abs=0.06)
        firsts = [[chain[0].token for chain in made.drafters[name].guesses[0][1:]] for name in ("coder", "writer")]
        rights = [[a == b for a, b in zip(own, long[0].tokens[1:], strict=True)] for own in firsts]
        either = sum(a or b for a, b in zip(*rights, strict=True)) / len(rights[0])
        assert either == pytest.approx(0.79, abs=0.05) if shared == 0.0 else either < 0.75
        chains = [chain for chain in made.drafters["coder"].guesses[0] if chain]
        sure = sum(chain[0].confidence for chain in chains) / len(chains)
        assert sure == pytest.approx(0.7, abs=0.05), "calibrated"


def test_sharing_a_token_takes_two_hops_and_the_slowest_drafter(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    together = Variant("", {"plan": "specinfer", "fusion": "token", "lengths": "tree:3"})
    found = run(only, together, streams=1, hop_s=0.003)
    rounds = 10  # of 4 tokens, after the first one's
    hops = 1 + 3 + 2 + 1  # the jobs, each guess, the path after all but the last, and the tree
    step_s = STEP_S * (1 + 5 / 63)  # a chain, and beside it what the other one said
    assert found.accepted_length == pytest.approx(LENGTH / (rounds + 1))
    assert found.seconds == pytest.approx(STEP_S + rounds * (hops * 0.003 + 3 * TOKEN_S + step_s), rel=0.03)


class Calls:
    """The guesses of a stand-in after some tokens."""

    def __init__(self, log: Log, drafter: str) -> None:
        from app.drafter.draft_kv import DraftKV
        from app.request import Sampling
        from app.stages.draft.protocol import Context

        self.draft_kv = DraftKV(drafter, LogGuesser(drafter, log.texts, log.drafters[drafter], SimClock()), 1000)
        self.context = Context("0", "public", [1, *log.texts[0].tokens[:4]], 1, 8, Sampling(seed=0), state=b"\0\0")

    def after(self, *tokens: int) -> list[int]:
        self.draft_kv.align(self.context, [*self.context.tokens, *tokens])
        return [guess.token for guess in self.draft_kv.guess(["0"], 3, 0.0)["0"]]


def test_a_stand_in_goes_on_from_its_own_guesses(log: Log) -> None:
    """Continue the chain of the round's beginning: a model that reads states knows less later in
    the round."""
    mine = list(log.drafters["coder"].guesses[0])
    mine[5] = chain((7, 7, 7), 0.9)
    other = DrafterLog(guesses=(tuple(mine), *log.drafters["coder"].guesses[1:]), token_s={1: TOKEN_S})
    calls = Calls(log.model_copy(update={"drafters": {"coder": other}}), "coder")
    text = log.texts[0].tokens
    assert calls.after() == [*text[4:7]]
    assert calls.after(text[4]) == [*text[5:8]]  # not 7: the chain that began at 4 goes on


def test_a_stand_in_follows_the_others_tokens_while_they_are_right(log: Log) -> None:
    calls = Calls(log, "writer")  # wrong everywhere in this text
    text = log.texts[0].tokens
    assert calls.after() == [999, 999, 999]
    assert calls.after(text[4]) == [999, 999, 999]
    assert calls.after(text[4], 5) == [999, 999, 999]


def test_a_slower_verifier_makes_more_drafting_pay(log: Log) -> None:
    slow = run(log, model("coder"), streams=1, slowdown=20.0, hop_s=0.02)
    fast = run(log, model("coder"), streams=1, slowdown=0.2, hop_s=0.02)
    assert slow.accepted_length > 1.2 * fast.accepted_length


def test_two_verifiers_share_the_texts(log: Log) -> None:
    log = log.model_copy(update={"costs": json.dumps({"points": [[1, STEP_S]], "ratio": 1.0})})  # a row
    one = run(log, Variant(OFF, speculates=False), streams=4)
    two = run(log, Variant(OFF, speculates=False), streams=4, verifiers=2)
    assert two.tokens_per_s > 1.5 * one.tokens_per_s


def test_the_model_free_drafters_are_the_real_ones(log: Log) -> None:
    """Look up a text that repeats itself."""
    text = Text(domain="code", prompt_ids=(1,), tokens=(5, 6, 7, 8, 9, 10, 11, 12) * 5)
    nothing = DrafterLog(guesses=(((),) * LENGTH,), token_s={1: TOKEN_S})
    again = log.model_copy(update={"texts": (text,), "drafters": {"coder": nothing}})
    looked_up: list[Drafter] = model_free()
    assert {"lookup", "suffix"} <= {drafter.name for drafter in looked_up}
    assert run(again, Variant("", drafters=()), streams=1).accepted_length > 1.5


def test_requests_at_times_of_their_own_wait_for_a_busy_verifier(log: Log) -> None:
    variant = Variant(OFF, speculates=False)
    setting = Setting(streams=1, is_local=True)
    calm, busy = (load(log, variant, setting, moments, model_free) for moments in ([0.0, 5.0, 10.0], [0.0] * 64))
    assert calm.total_s == pytest.approx(LENGTH * STEP_S, rel=0.02) == calm.ttft_s + 39 * calm.tpot_s
    assert busy.total_s > 1.5 * calm.total_s and busy.tokens_per_s > 10 * calm.tokens_per_s


def test_the_adaptive_length_is_near_the_longest_where_rows_are_cheap(log: Log) -> None:
    moments = [0.5 * i for i in range(24)]
    setting = Setting(streams=1)  # each drafter on a node of its own
    met = {variant.name: load(log, variant, setting, moments, model_free) for variant in arms([1, 3, 7])}
    best = min(one.total_s for name, one in met.items() if name != FULL)
    fixed_s = [met[f"fixed {length}"].total_s for length in (1, 3, 7)]
    assert met["fixed 7"].total_s == min(fixed_s) < 0.6 * met[OFF].total_s
    assert met[FULL].total_s < 1.05 * best


def test_made_chains_go_on_behind_their_first_wrong_token(log: Log) -> None:
    made = with_experts(log, 0.6, 0.4, {"code": "coder"}, "writer", 1, 0.5)
    tokens, chains = made.texts[0].tokens, made.drafters["coder"].guesses[0]
    for at, chain in enumerate(chains[1:-DEPTH], start=1):
        hits = [guess.token == token for guess, token in zip(chain, tokens[at : at + DEPTH], strict=True)]
        assert hits == sorted(hits, reverse=True), "right, then wrong to its end"


@pytest.mark.parametrize("flag", ["--repeats", "--streams", "--verifiers"])
@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_number_of_things_is_at_least_one(flag, number, capsys) -> None:
    with pytest.raises(SystemExit):
        parse_args(["replay", flag, number])
    assert f"argument {flag}: {number!r} is no whole number from 1" in capsys.readouterr().err
