"""Test a target that takes a stated time, computed or remembered, in this process and as a deployment here."""

import json
import time
from pathlib import Path

import pytest

from app.assembly.devices import target_runner
from app.assembly.local import Models, build_local
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.engine.text.tokenizer import Tokenizer
from app.request import GenerateRequest
from lab.deployed.paced_verifier import PacedTarget
from lab.deployed.remembered import RememberedTarget, generated
from lab.run import late_ways, main
from tests.workers.tiny import make_model

PROMPTS = {"code": ("one", "two"), "prose": ("three",)}
TOKENS = 12


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    make_model(tmp_path / "target", fused=True)
    return Settings(model=str(tmp_path / "target"), drafters=(), phrases="none", home=tmp_path, kv_bytes=2**26)


def costs(step_s: float) -> str:
    return json.dumps({"points": [[1, step_s], [64, step_s]], "ratio": 1.0})


def answered(settings: Settings, target: object, prompt: str, **fields: float) -> tuple[int, ...]:
    tokenizer = Tokenizer(Path(settings.model))
    pipeline = build_local(settings, Models(target, costs(0.005), {}, tokenizer))  # type: ignore[arg-type]
    record = pipeline.submit(GenerateRequest(prompt=prompt, max_tokens=TOKENS, **fields), settings)  # type: ignore[arg-type]
    return tuple(token for event in pipeline.events(record) for token in event.tokens)


def test_a_step_takes_the_stated_time_and_a_longer_one_is_counted(settings: Settings) -> None:
    runner = target_runner(Path(settings.model), settings, 8192)
    paced = PacedTarget(runner, StepCosts({1: 0.02, 64: 0.02}))
    began_s = time.monotonic()
    tokens = answered(settings, paced, "one")
    assert time.monotonic() - began_s >= 0.02 * paced.figures["steps"] >= 0.02
    late = PacedTarget(runner, StepCosts({1: 1e-6, 64: 1e-6}))
    assert answered(settings, late, "one") == tokens, "a pace changes no text"
    assert late.figures["late"] == late.figures["steps"] > 0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}])
def test_a_remembered_text_is_the_targets_own_with_drafts_and_without(
    settings: Settings, sampling: dict[str, float]
) -> None:
    texts = generated(settings, PROMPTS, costs(0.005), max_tokens=TOKENS, **sampling)
    target = RememberedTarget(texts)
    runner = target_runner(Path(settings.model), settings, 8192)
    for prompt in ("three", "one"):
        assert answered(settings, target, prompt, **sampling) == answered(settings, runner, prompt, **sampling)
    assert all(len(text.states) == TOKENS and text.states[0] for text in texts), "drafters read them"


def test_ways_with_too_many_late_steps_are_listed() -> None:
    ways = {name: {"paced": {"steps": 100, "late": late}} for name, late in (("off", 2), ("pace", 3))}
    assert late_ways({**ways, "cosine": {}}) == "pace 3.0%"


@pytest.mark.extended
def test_drafters_on_this_machine_count_as_devices_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "target", fused=True)
    for name in ("north", "south"):
        make_model(tmp_path / name, fused=True)
    monkeypatch.setenv("PACELINE_MODEL", str(tmp_path / "target"))
    monkeypatch.setenv("PACELINE_DRAFTERS", f"{tmp_path / 'north'},{tmp_path / 'south'}")
    monkeypatch.setenv("PACELINE_KV_BYTES", str(2**26))
    stated, out = tmp_path / "stated.json", tmp_path / "out.json"
    stated.write_text(costs(0.03))
    flags = ["--in", "deployed", "--paced", str(stated), "--remember", "--ways", "specinfer", "--max-tokens", "16"]
    main([*flags, "--prompts", "1", "--blocks", "1", "--out", str(out)])  # 1 where this machine was too busy
    found = json.loads(out.read_text())
    ways = found["ways"]
    assert ways["off"]["drafted_a_round"] == 0.0 < ways["specinfer"]["drafted_a_round"]
    assert len({node["host"] for node in ways["specinfer"]["nodes"].values()}) == 2
    assert ways["off"]["mean_ms"]["step"] >= 30.0 and found["place"]["paced"] == "stated.json"
    assert ways["specinfer"]["core_s"]["verify-1"] > 0.0
