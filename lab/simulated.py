"""Run ways of drafting in simulations over a recording: drafters and verifiers on machines of their own."""

import json
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from typing import Any

from app.config import ROOT, Settings
from app.engine.weights.blocks import dense
from app.engine.weights.resolve import drafter_folder, target_folder
from app.engine.weights.tensors import stored_embedding
from app.stages.draft.phrases import load_phrases
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import build as build_model_free
from app.store.protocol import Snapshot
from bench.prompts import Prompts
from lab.load import Block
from lab.simulate.adaspec import adaspec_guessers
from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.world import Setting, costs_of
from lab.ways import Variant

LIVE = ROOT / "lab" / "costs" / "live-two-cores.json"


class SimulatedRunner:
    """A way's simulated deployment. A block's prompts are the numbers of the recording's texts."""

    def __init__(self, way: Variant, log: Log, setting: Setting) -> None:
        if way.ends_as:
            setting = replace(setting, guesser=adaspec_guessers(costs_of(log, setting.slowdown)))
        self._world = build(log, way, setting, lambda: model_free(log.vocab_size))
        self._number = count()

    def run(self, block: Block) -> list[Snapshot]:
        ids = [f"{text}.{next(self._number)}" for _, text in block.requests]
        self._world.waiting.clear()
        self._world.waiting.extend(ids)
        self._world.run(block.arrivals_s)
        return [self._world.store.snapshot(request_id) for request_id in ids]

    @property
    def step_s(self) -> float:
        targets = [verifier.target for verifier in self._world.verifiers]
        return sum(target.busy_s for target in targets) / sum(target.steps for target in targets)

    def report(self) -> dict[str, Any]:
        return {"model_rounds": round(self._world.model_rounds, 3), "mean_ms": {"step": round(1e3 * self.step_s, 3)}}


def with_live_costs(setting: Setting, file: Path = LIVE) -> Setting:
    """Return the setting with what Python and messages took where that was measured."""
    known = json.loads(file.read_text())
    return replace(setting, **{field.name: known[field.name] for field in fields(setting) if field.name in known})


def with_live_drafters(log: Log, file: Path = LIVE) -> Log:
    """Return the recording with drafters that take what they took there."""
    known = json.loads(file.read_text())
    own = {"token_s": {int(batch): seconds for batch, seconds in known["token_s"].items()}, "read_s": known["read_s"]}
    return log.model_copy(update={"drafters": {name: d.model_copy(update=own) for name, d in log.drafters.items()}})


def prompts_of(log: Log) -> Prompts:
    """Return the numbers of a recording's texts by domain."""
    found: dict[str, tuple[str, ...]] = {}
    for i, text in enumerate(log.texts):
        found[text.domain] = (*found.get(text.domain, ()), str(i))
    return found


def with_target(log: Log) -> Log:
    """Return the recording with the settings' target, by whose embedding CoSine's routing rates, if that fits."""
    folder = target_folder(Settings.from_env())
    fits = len(dense(stored_embedding(folder))) == log.vocab_size
    return log.model_copy(update={"target": folder}) if fits else log


def model_free(vocab_size: int, store: str | None = None) -> list[Drafter]:
    """Return new model-free drafters, with a store of phrases ("none": without; None: as PACELINE_PHRASES has it)."""
    settings = Settings.from_env()
    store = store or settings.phrases
    found = [] if store == "none" else [load_phrases(drafter_folder(store), vocab_size, settings.home / "phrases")]
    return [*build_model_free(), *found]
