"""Compare the engine's logits, and those of the model's own modules, with the model's in float32.

The same ids, read in two pieces by the engine and whole by the modules; mean distance in deviations of the logits. In
bfloat16 both are off, and the engine should not be further off than the modules are.

Then random steps, captured and eagerly, in exact mode: their logits must have the same bits.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from app.engine.cpu.equivalence import probe
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights, take
from app.state import BatchEntry, Tree
from bench.gpu.random_models import EIGHT_B, ONE_B, TINY, Shape, random_model, random_weights, room, runner_of
from bench.gpu.random_steps import RandomSteps, Sizes
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import chain, reserve

HALF = 48  # ids of each piece
STEPS, SIZES = 200, Sizes(sequences=24, prompt=200, text=600, nodes=8)
QUICK_STEPS, QUICK_SIZES = 4, Sizes(sequences=3, prompt=3, text=40, nodes=4)


def measure(setting: Setting, found: Figures) -> None:
    """Write mean distances, in standard deviations of the logits, and what random steps met, into `found`. Raises
    AssertionError where a captured step has other bits than the same step run eagerly."""
    for shape in (TINY,) if setting.is_quick else (ONE_B, EIGHT_B):
        found[shape.name] = _model(setting, shape, 8 if setting.is_quick else HALF)
        setting.free()
        for name, off in found[shape.name].items():
            print(f"{shape.name:6}{name:28} {off:.2e} deviations", flush=True)
    small = replace(TINY, layers=1) if setting.is_quick else ONE_B
    found["captured to eager"] = _captured(setting, random_weights(setting, small), small)
    print(f"captured to eager {found['captured to eager']}", flush=True)
    if found["captured to eager"]["rows_with_other_bits"]:
        raise AssertionError("captured steps have other bits than the same steps run eagerly")


def _captured(setting: Setting, weights: Weights, shape: Shape) -> Figures:
    steps, sizes = (QUICK_STEPS, QUICK_SIZES) if setting.is_quick else (STEPS, SIZES)
    tokens = room(sizes.sequences, sizes.text)
    runners = [runner_of(weights, tokens, is_exact=True, has_graphs=has_graphs) for has_graphs in (True, False)]
    return asdict(RandomSteps(runners, shape.vocab, sizes).run(steps, setting.has_time))


def _model(setting: Setting, shape: Shape, half: int) -> Figures:
    ids = probe(2 * half, shape.vocab).tokens
    model = random_model(setting, shape)
    own = _modules(model, ids, half)
    expected = _modules(copy.deepcopy(model).float(), ids, half)
    found = {"modules": _distance(own, expected)}
    weights = take(model)
    for is_exact in (False, True):
        runner = runner_of(weights, room(1, 2 * half), is_exact=is_exact, has_graphs=False)
        rows = _engine(runner, ids, half)
        found["engine, exact" if is_exact else "engine"] = _distance(rows, expected)
        found["engine to modules" + ", exact" * is_exact] = _distance(rows, own)
    return found


@torch.inference_mode()
def _modules(model: Any, ids: list[int], half: int) -> torch.Tensor:
    """Return logits (half, V) float32 of the second piece, from the model's own modules."""
    logits: torch.Tensor = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, half:].float()
    return logits


def _engine(runner: DeviceRunner, ids: Sequence[int], half: int) -> torch.Tensor:
    """Return logits (half, V) float32 of the second piece, given as a chain so that all of its rows are wanted."""
    sequence = probe(1, 2)
    runner.forward([reserve(runner, BatchEntry(sequence, 0, list(ids[:half]), Tree(), final=False))])
    work = reserve(runner, BatchEntry(sequence, half, [ids[half]], chain(ids[half + 1 :]), final=True))
    answer = runner.forward([work])[0]
    assert answer is not None
    return answer.rows.float()


def _distance(rows: torch.Tensor, expected: torch.Tensor) -> float:
    return float((rows - expected).abs().mean() / expected.std())
