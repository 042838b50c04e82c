"""Keep a model's measurements on this machine from start to start.

They are renewed if weights, code, libraries, settings or machine change.
"""

import json
import logging
import math
import os
import platform
from dataclasses import asdict
from pathlib import Path

import torch

from app.config import Settings
from app.engine.kv.sizing import longest_tokens
from app.engine.profile.gpu_profiler import measure_gpu_costs
from app.engine.profile.profiler import (
    CONTEXT,
    Exactness,
    ProfiledTarget,
    check_exactness,
    measure_costs,
    times,
)
from app.engine.step_costs import StepCosts
from app.engine.weights.fingerprint import digest
from app.engine.weights.model_cache import read_cached, write_cached
from app.system import processor

log = logging.getLogger(__name__)
SHAPING = ("weights", "activations", "device", "gpu_dtype", "gpu_exact", "verify_threads", "draft_device")
PLAN_SHAPING = ("placement", "partition")  # these leave the target a part of the machine
SPOTS = (1, 8, 32)  # rows
ALIKE = 1.35  # largest ratio of the paces at the spots
LOOKS = 4  # at the spots, before steps are said to have another shape


def measured(
    runner: ProfiledTarget, vocab_size: int, context_tokens: int, folder: Path, settings: Settings, device: str = "cpu"
) -> StepCosts:
    """Cache below `settings.home`; warn if rows do not keep their bits.

    What is kept is not asked whether it still holds: that takes seconds, and each step corrects it.
    """
    file = _file(folder, settings)
    kept = read_cached(file, _build)
    if kept is None:
        if device == "cpu":
            costs = measure_costs(runner, vocab_size, context_tokens)
        else:
            costs = measure_gpu_costs(runner, vocab_size, longest_tokens(context_tokens, settings))
        kept = check_exactness(runner, vocab_size), costs
        write_cached(file, json.dumps({"exactness": asdict(kept[0]), "costs": json.loads(kept[1].dumps())}))
    exactness, costs = kept
    exactness.warn()
    return costs


def holds(costs: StepCosts, runner: ProfiledTarget, vocab_size: int) -> bool:
    """Compare a few steps' seconds with `costs` up to one common factor, which `costs` take over.

    Other processes start at the same time, so the best of several looks decides.
    """
    reading = costs.reading
    expected = {rows: costs.seconds(rows) + reading.seconds(CONTEXT, rows) for rows in SPOTS}
    best = dict.fromkeys(SPOTS, math.inf)
    for _ in range(LOOKS):
        seen = times(runner, vocab_size, SPOTS)
        best = {rows: min(best[rows], seconds) for rows, seconds in seen.items()}
        paces = sorted(seconds / expected[rows] for rows, seconds in best.items())
        if paces[-1] <= ALIKE * paces[0]:
            costs.ratio *= paces[len(paces) // 2]
            return True
    log.info("steps have another shape than when they were measured last: measuring again")
    return False


def is_kept(folder: Path, settings: Settings) -> bool:
    return _file(folder, settings).is_file()


def _file(folder: Path, settings: Settings) -> Path:
    return settings.home / "measured" / f"{_key(folder, settings)}.json"


def _build(text: str) -> tuple[Exactness, StepCosts]:
    data = json.loads(text)
    return Exactness(**data["exactness"]), StepCosts.loads(json.dumps(data["costs"]))


def _key(folder: Path, settings: Settings) -> str:
    shaping = {name: getattr(settings, name) for name in SHAPING}
    shaping |= {name: getattr(settings.plan, name) for name in PLAN_SHAPING}
    return digest([folder], settings=shaping, machine=[platform.machine(), processor(), os.cpu_count(), _gpu()])


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
