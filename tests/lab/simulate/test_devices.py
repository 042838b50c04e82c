"""Test what simulated links, pipelines, caches and drafters' contexts take, by closed forms."""

import json

import pytest

from app.messages import ToVerifier
from app.stages.draft.registry import build as model_free
from app.state import Guess
from lab.simulate.events import Link, Machine, Network, Wire
from lab.simulate.log import DrafterLog, Log, Text
from lab.simulate.machines import build
from lab.simulate.models import SimClock
from lab.simulate.pipeline_device import PipelineDevice
from lab.simulate.world import Setting, World
from lab.ways import OFF, Variant, fixed

STEP_S, LENGTH, TEXTS = 0.05, 32, 8


@pytest.fixture
def log() -> Log:
    """Make texts whose step takes the same for any rows, and a drafter that is always right."""
    texts = tuple(
        Text(domain="all", prompt_ids=(1,) * 16, tokens=tuple(range(100 * i, 100 * i + LENGTH)))
        for i in range(1, TEXTS + 1)
    )
    guesses = tuple(
        tuple(tuple(Guess(token, 0.9, 0, 0.0) for token in text.tokens[i : i + 8]) for i in range(LENGTH))
        for text in texts
    )
    costs = json.dumps({"points": [[1, STEP_S], [2048, STEP_S]], "ratio": 1.0})
    free = DrafterLog(guesses=guesses, token_s={1: 1e-9, 64: 1e-9})
    return Log(costs=costs, vocab_size=2000, texts=texts, drafters={"one": free})


def run(log: Log, variant: Variant, setting: Setting) -> World:
    world = build(log, variant, setting, model_free)
    world.run()
    assert all(world.store.snapshot(record.id).tokens == log.texts[int(record.id)].tokens for record in world.ended)
    return world


def last_s(world: World) -> float:
    return max(world.store.snapshot(record.id).stats.last_token_s or 0.0 for record in world.ended)


def test_a_message_takes_latency_bits_and_its_turn_on_both_links() -> None:
    message = ToVerifier()
    bits = 8 * len(message.json())
    clock, came_s = SimClock(), []
    wires = {"a": Wire(Link(0.5, bits / 2.0)), "b": Wire(Link(0.25, bits / 4.0))}  # 2 s and 4 s a message
    network = Network(99.0, wires)

    def send(mail: list[None]) -> None:
        network.send("b", message, 0.0)
        network.send("b", message, 0.0)
        network.send("centre", message, 0.0)

    def take(mail: list[ToVerifier]) -> None:
        came_s.append(network.now_s)

    network.add(Machine("a", clock, send))
    network.add(Machine("b", SimClock(), take))
    network.add(Machine("centre", SimClock(), take))
    network.send("a", None, 0.0, hop_s=0.0)
    network.run(lambda: len(came_s) == 3)
    assert sorted(came_s) == pytest.approx([6.5, 6.75, 10.75])


def test_what_leaves_later_holds_up_nothing_on_a_link() -> None:
    """Send after long work, decided on before another machine sends at once."""
    message, came_s = ToVerifier(), list[float]()
    bits, clock = 8 * len(ToVerifier().json()), SimClock()
    network = Network(0.0, {"to": Wire(Link(0.0, bits))})  # a second a message

    def work(mail: list[None]) -> None:
        clock.now_s += 100.0
        network.send("to", message, clock.now_s)

    network.add(Machine("slow", clock, work))
    network.add(Machine("quick", SimClock(), lambda mail: network.send("to", message, network.now_s)))
    network.add(Machine("to", SimClock(), lambda mail: came_s.append(network.now_s)))
    network.send("slow", None, 0.0, hop_s=0.0)
    network.send("quick", None, 5.0, hop_s=0.0)
    network.run(lambda: len(came_s) == 2)
    assert came_s == [6.0, 101.0]


def test_a_pipeline_takes_a_whole_pass_and_then_gives_a_step_a_stage() -> None:
    device = PipelineDevice(4)
    assert [device.verify(0.0, 1, 0.3, 0.1) for _ in range(3)] == pytest.approx([0.4, 0.5, 0.6])
    assert device.verify(10.0, 1, 0.3, 0.1) == pytest.approx(0.4)
    assert device.draft(0.0, 1, 0.2) == 0.2


def test_as_many_verifiers_as_stages_share_a_pipeline_without_loss(log: Log) -> None:
    off = Variant(OFF, speculates=False)
    one = last_s(run(log, off, Setting(streams=4)))
    piped = last_s(run(log, off, Setting(streams=4, verifiers=4, stages=4)))
    crowded = last_s(run(log, off, Setting(streams=4, verifiers=4, stages=2)))
    assert one == pytest.approx(2 * LENGTH * STEP_S)
    assert piped == pytest.approx(one + 0.75 * STEP_S, rel=0.01), "the last of the four begins three stages later"
    assert crowded == pytest.approx(2 * one, rel=0.03), "four steps in two stages: twice as many as pass at once"


def test_a_sequence_without_room_is_preempted_and_its_text_is_the_same(log: Log) -> None:
    off = Variant(OFF, speculates=False)
    plenty = run(log, off, Setting(streams=4))
    tight = run(log, off, Setting(streams=4, kv_tokens=96))  # two sequences of 48 tokens
    assert last_s(tight) > 1.8 * last_s(plenty)


def test_a_cached_token_slows_each_guess_of_a_drafter(log: Log) -> None:
    only = log.model_copy(update={"texts": log.texts[:1]})
    drafter = log.drafters["one"].model_copy(update={"context_s": 1e-4})
    slow = only.model_copy(update={"drafters": {"one": drafter}})
    setting, variant = Setting(streams=1, hop_s=0.0), fixed("one", 3)
    quick_s, slow_s = (last_s(run(one, variant, setting)) for one in (only, slow))
    # The prompt in a pass of its own; then 1 + 7 x 4 tokens, and two that are left.
    contexts = 16 + sum(3 * (16 + 1 + 4 * i) for i in range(7)) + 2 * (16 + 29)
    assert slow_s - quick_s == pytest.approx(1e-4 * contexts, rel=0.02)


def test_a_perfect_free_drafter_gives_a_token_more_than_it_drafts(log: Log) -> None:
    for length in (1, 3):
        world = run(log, fixed("one", length), Setting(streams=2, hop_s=0.0))
        rounds = [world.store.snapshot(record.id).stats.rounds for record in world.ended]
        assert set(rounds) == {1 + -(-(LENGTH - 1) // (length + 1))}


def test_a_verifier_expects_what_a_step_that_reads_a_prompt_takes(log: Log) -> None:
    """The steps take what is measured, a prompt's rows less their logits: none of them teaches another pace."""
    costs = json.dumps({"points": [[1, 0.011], [101, 0.111]], "ratio": 1.0, "logits_s": 0.0005})
    world = run(log.model_copy(update={"costs": costs}), Variant(OFF, speculates=False), Setting(2))
    (verifier,) = world.verifiers
    errors = verifier.segment.report()["cost_errors"]
    assert isinstance(errors, dict) and errors["step"] == pytest.approx(0.0, abs=1e-9)
