"""Test how a target is loaded: the memory that its longest request needs, and nothing beyond it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from app.assembly.devices import max_sequences, target_runner
from app.assembly.verifier import load_ahead, load_target, measured_target
from app.config import Settings
from app.engine.early_exit.controller import EarlyExitController
from app.engine.kv.pages import bytes_per_page
from app.engine.kv.sizing import GPU_PART, PAGE_TOKENS, SLACK_TOKENS
from app.engine.step_costs import StepCosts
from app.errors import ModelRefused
from tests.app.engine.gpu.fake_card import FakeCard
from tests.workers.tiny import CONTEXT_TOKENS, make_model

MB = 2**20
CARD, WEIGHTS, GRAPHS, STEP = 24_000 * MB, 15_000 * MB, 300 * MB, 700 * MB  # of a fake GPU, bytes
LEFT_OVER = 7_000 * MB  # blocks of weights that were joined since
TOKEN_BYTES = 131_072  # of keys and values, an 8B model's
PROMPT_TOKENS, NEW_TOKENS = 1800, 200


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target that reads four times as much as the settings allow a request."""
    return make_model(tmp_path_factory.mktemp("devices") / "target")


def settings(target: Path, spare_pages: int) -> Settings:
    """Return settings with room for one request of 2000 tokens and its drafts, and `spare_pages` more."""
    config = LlamaConfig.from_pretrained(target)
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    page_bytes = bytes_per_page(layers, heads, config.hidden_size // config.num_attention_heads, PAGE_TOKENS)
    pages = (PROMPT_TOKENS + NEW_TOKENS + SLACK_TOKENS) // PAGE_TOKENS + spare_pages
    return Settings(
        model=str(target),
        home=target.parent,
        kv_bytes=pages * page_bytes,
        max_prompt_tokens=PROMPT_TOKENS,
        max_tokens=NEW_TOKENS,
    )


def test_a_cache_for_the_longest_request_suffices(target: Path) -> None:
    runner = target_runner(target, settings(target, 0), CONTEXT_TOKENS)
    assert runner.capacity_tokens == PROMPT_TOKENS + NEW_TOKENS + SLACK_TOKENS < CONTEXT_TOKENS


def test_a_cache_for_less_is_refused(target: Path) -> None:
    with pytest.raises(ModelRefused, match="fewer than one request of 2000 and its drafts; raise PACELINE_KV_BYTES"):
        target_runner(target, settings(target, -1), CONTEXT_TOKENS)


def test_pages_of_halves_hold_twice_the_tokens(tmp_path: Path) -> None:
    chosen = settings(make_model(tmp_path / "target", fused=True), 0)
    whole, halves = (
        target_runner(Path(chosen.model), chosen.changed(kv_dtype=dtype), CONTEXT_TOKENS)
        for dtype in ("float32", "float16")
    )
    assert halves.capacity_tokens == 2 * whole.capacity_tokens


def test_pages_of_halves_are_for_our_own_engine_on_cpus(target: Path) -> None:
    with pytest.raises(ModelRefused, match="PACELINE_KV_DTYPE=float16 applies to Paceline's engine for CPUs only"):
        target_runner(target, settings(target, 0).changed(engine="vllm", kv_dtype="float16"), CONTEXT_TOKENS)


@pytest.mark.parametrize(("fused", "kept"), [(False, True), (True, True), (True, False)])
def test_a_target_is_loaded_once_and_forks_if_compiled_and_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fused: bool, kept: bool
) -> None:
    monkeypatch.setattr("app.assembly.verifier.is_kept", lambda *_: kept)
    monkeypatch.setattr("app.assembly.verifier.measure", lambda *_, **__: StepCosts({1: 0.01}))
    chosen, firsts = settings(make_model(tmp_path / "target", fused=fused), 0), list[object]()
    loaded = load_ahead(chosen, firsts.append)
    assert loaded.forks == (fused and kept) and len(firsts) == (not kept)
    assert load_target(chosen, loaded)[0] is loaded.runner


@pytest.mark.parametrize(("device", "usual"), [("cpu", 64), ("cuda", 256)])
def test_sequences_at_once_follow_the_device_unless_set(
    monkeypatch: pytest.MonkeyPatch, device: str, usual: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert max_sequences(Settings.model_validate({"device": device})) == usual
    assert max_sequences(Settings.model_validate({"device": device, "max_sequences": 7})) == 7


@pytest.mark.parametrize(("device", "tokens"), [("cpu", 0), ("cuda", 2048)])
def test_chunks_of_prompts_follow_the_device(monkeypatch: pytest.MonkeyPatch, device: str, tokens: int) -> None:
    """On a GPU a verifier reads them as wide as the device's default, whatever the policy's own says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("app.assembly.verifier.pruning", lambda *_: EarlyExitController())
    monkeypatch.setattr("app.assembly.verifier.target_folder", lambda _: Path("target"))
    tokenizer: Any = SimpleNamespace(vocab_size=8)
    target: Any = SimpleNamespace()
    chosen = Settings.model_validate({"device": device})
    assert measured_target(chosen, target, StepCosts({1: 0.01}), tokenizer).chunk_tokens == tokens


class Runner:
    """A fake runner that takes pages from the card, and graphs and a step's memory when it rehearses."""

    def __init__(self, card: FakeCard, kv_bytes: int, longest_tokens: int) -> None:
        self.card, self.longest_tokens = card, longest_tokens
        self.page_bytes = max(2 * PAGE_TOKENS * TOKEN_BYTES, kv_bytes)
        self.capacity_tokens = self.page_bytes // TOKEN_BYTES
        card.held[id(self)] = self.page_bytes

    def rehearse(self, rows: int) -> None:
        self.card.held[id(self)] += GRAPHS
        self.card.lend(STEP)
        assert self.card.free_bytes() >= 0, "out of memory"

    def __del__(self) -> None:
        self.card.release(id(self))


@pytest.mark.parametrize("given", [None, 3_000 * MB])
def test_a_gpus_pages_are_sized_after_weights_and_graphs(monkeypatch: pytest.MonkeyPatch, given: int | None) -> None:
    """A model that reads 131,072 tokens, 17 GB of cache, fits a card of 24 GB beside 15 GB of weights."""
    for name in ("load", "runner", "memory"):
        pytest.importorskip(f"app.engine.gpu.{name}", reason="Triton is not made for this machine")
    card = FakeCard(CARD, WEIGHTS, LEFT_OVER)

    def runner(weights: Any, *, kv_bytes: int, longest_tokens: int, **rest: Any) -> Runner:
        return Runner(card, kv_bytes, longest_tokens)

    monkeypatch.setattr("app.engine.gpu.load.load_weights", lambda *_: SimpleNamespace(token_bytes=TOKEN_BYTES))
    monkeypatch.setattr("app.engine.gpu.memory.DeviceMemory", lambda device: card)
    monkeypatch.setattr("app.engine.gpu.runner.DeviceRunner", runner)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found: Any = target_runner(Path("model"), Settings(device="cuda", kv_bytes=given), 131_072)
    assert found.longest_tokens == 8000 + 4096 + SLACK_TOKENS
    assert found.page_bytes == (given or int((CARD - WEIGHTS - GRAPHS - STEP) * GPU_PART))
    card.settle()
    assert card.held == {"weights": WEIGHTS, id(found): found.page_bytes + GRAPHS}
