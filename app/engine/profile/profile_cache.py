"""What was measured of a model on this machine, kept from one start of a verifier to the next.

A measurement is of weights, code, libraries, settings and machine; with any of them changed it is made anew. So it is
where a few of the steps, timed again, have another shape than what is kept: pace may differ, a `CostTable` follows it.
"""

import json
import logging
import os
import platform
from dataclasses import asdict
from pathlib import Path

import torch

from app.config import Settings
from app.engine.profile.profiler import (
    CONTEXT,
    Exactness,
    ProfiledTarget,
    check_exactness,
    measure_costs,
    times,
)
from app.engine.weights.fingerprint import digest
from app.engine.weights.model_cache import read_cached, write_cached
from app.estimates.step_costs import StepCosts
from app.system import processor

log = logging.getLogger(__name__)
SHAPING = (
    "weights", "device", "gpu_dtype", "gpu_exact", "verify_threads",
    "placement", "partition", "draft_device",  # which leave the target a part of the machine
)  # fmt: skip
SPOTS = (1, 8, 32)  # rows
ALIKE = 1.35  # how far the paces seen at the spots may be apart


def measured(
    runner: ProfiledTarget, vocab_size: int, context_tokens: int, folder: Path, settings: Settings
) -> StepCosts:
    """What steps cost, and a warning where rows do not keep their bits: as kept below `settings.home` if it still
    holds, else found out, which takes seconds, and kept."""
    file = settings.home / "measured" / f"{_key(folder, settings)}.json"
    kept = read_cached(file, _build)
    if kept is None or not holds(kept[1], runner, vocab_size):
        kept = check_exactness(runner, vocab_size), measure_costs(runner, vocab_size, context_tokens)
        write_cached(file, json.dumps({"exactness": asdict(kept[0]), "costs": json.loads(kept[1].dumps())}))
    exactness, costs = kept
    exactness.warn()
    return costs


def holds(costs: StepCosts, runner: ProfiledTarget, vocab_size: int) -> bool:
    """Whether steps of a few sizes cost what the table says, but for one common factor, which it then takes over."""
    seen = times(runner, vocab_size, SPOTS)
    reading = costs.reading
    expected = {rows: costs.seconds(rows) + reading.seconds(CONTEXT, rows) for rows in seen}
    paces = sorted(seconds / expected[rows] for rows, seconds in seen.items())
    if paces[-1] > ALIKE * paces[0]:
        log.info("steps have another shape than when they were measured last: measuring again")
        return False
    costs.ratio *= paces[len(paces) // 2]
    return True


def _build(text: str) -> tuple[Exactness, StepCosts]:
    data = json.loads(text)
    return Exactness(**data["exactness"]), StepCosts.loads(json.dumps(data["costs"]))


def _key(folder: Path, settings: Settings) -> str:
    """A digest of all that a measurement depends on."""
    shaping = {name: getattr(settings, name) for name in SHAPING}
    return digest([folder], settings=shaping, machine=[platform.machine(), processor(), os.cpu_count(), _gpu()])


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
