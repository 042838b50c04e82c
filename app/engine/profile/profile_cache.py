"""Keep a model's measurements on this machine from start to start.

They are renewed if weights, code, libraries, settings or machine change.
"""

import json
import logging
import math
import os
import platform
from collections.abc import Callable
from collections.abc import Sequence as Listed
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from app.config import Settings
from app.engine.kv.sizing import longest_tokens
from app.engine.profile.gpu_profiler import measure_gpu_costs
from app.engine.profile.profiler import (
    CONTEXT,
    FIRST_PASSES,
    FIRST_ROWS,
    Exactness,
    LogitRows,
    ProfiledTarget,
    check_exactness,
    measure_costs,
    times,
)
from app.engine.step_costs import StepCosts
from app.engine.weights.fingerprint import digest
from app.engine.weights.model_cache import read_cached, write_cached
from app.logs import STARTING
from app.state import BatchEntry, CachedSequence
from app.system import exclusive, processor

log = logging.getLogger(__name__)
SHAPING = ("weights", "activations", "kv_dtype", "device", "gpu_dtype", "gpu_exact", "verify_threads", "draft_device")
PLAN_SHAPING = ("placement", "partition")  # these leave the target a part of the machine
SPOTS = (1, 8, 32)  # rows
ALIKE = 1.35  # largest ratio of the paces at the spots
LOOKS = 4  # at the spots: what else runs disturbs single ones


def measured(
    runner: ProfiledTarget,
    vocab_size: int,
    context_tokens: int,
    folder: Path,
    settings: Settings,
    device: str = "cpu",
    *,
    in_full: bool = True,
) -> StepCosts:
    """Cache below `settings.home`; warn if rows are known not to keep their bits.

    `in_full`: else a CPU's first start times few steps, and `measure_again` the rest. Whether what is kept still holds
    takes seconds to see: it looks for that, too.
    """
    file = _file(folder, settings)
    kept = read_cached(file, _build)
    if kept is None or in_full and kept[0] is None:
        STARTING.info("warming up: timing steps")
        if device != "cpu":
            costs = measure_gpu_costs(runner, vocab_size, longest_tokens(context_tokens, settings))
        elif in_full:
            costs = measure_costs(runner, vocab_size, context_tokens)
        else:
            costs = measure_costs(runner, vocab_size, context_tokens, FIRST_ROWS, FIRST_PASSES, is_rough=True)
        kept = None if costs.is_rough else check_exactness(runner, vocab_size), costs
        _keep(file, *kept)
    exactness, costs = kept
    if exactness is not None:
        exactness.warn()
    return costs


def measure_again(
    runner: ProfiledTarget,
    costs: StepCosts,
    vocab_size: int,
    context_tokens: int,
    folder: Path,
    settings: Settings,
    goes_on: Callable[[], bool],
) -> bool:
    """Measure what a first start left out; later look whether that holds, and else measure anew.

    `costs` take over more sizes, and what is faster: a machine that is busy only slows steps down. Return False when
    `goes_on`, asked before each step, ended it, or another process measures.
    """
    file = _file(folder, settings)
    with ExitStack() as stack:
        try:  # on the same cores two would be slow
            is_alone = stack.enter_context(exclusive(file.with_suffix(".lock")))
        except OSError:  # nothing can be kept there, either
            is_alone = True
        return is_alone and _measure(_Watched(runner, goes_on), costs, vocab_size, context_tokens, file)


def _measure(watched: "_Watched", costs: StepCosts, vocab_size: int, context_tokens: int, file: Path) -> bool:
    exactness, known = read_cached(file, _build) or (None, costs)
    if costs.is_rough and not known.is_rough:  # another verifier has measured
        costs.take_over(known)
    try:
        if known.is_rough:
            log.info("timing steps of all sizes")
            known = measure_costs(watched, vocab_size, context_tokens)
            costs.take_over(known)
            _keep(file, None, known)
        if exactness is None:
            exactness = check_exactness(watched, vocab_size)
            exactness.warn()
            _keep(file, exactness, known)
        elif not _holds(known, watched, vocab_size):
            log.info("steps are faster than when they were measured, or of another shape: measuring again")
            found = measure_costs(watched, vocab_size, context_tokens)
            if sum(map(found.seconds, SPOTS)) < sum(map(known.seconds, SPOTS)):
                costs.take_over(found)
                _keep(file, exactness, found)
    except _Interrupted:
        return False
    finally:
        watched.release_all()
    return True


def _holds(kept: StepCosts, runner: ProfiledTarget, vocab_size: int) -> bool:
    """Compare the best of several looks at a few steps with what is kept, up to one factor of at least 1 / ALIKE."""
    reading = kept.reading
    expected = {rows: kept.seconds(rows) + reading.seconds(CONTEXT, rows) for rows in SPOTS}
    best = dict.fromkeys(SPOTS, math.inf)
    for _ in range(LOOKS):
        seen = times(runner, vocab_size, SPOTS)
        best = {rows: min(best[rows], seconds) for rows, seconds in seen.items()}
        paces = [seconds / expected[rows] for rows, seconds in best.items()]
        if max(paces) <= ALIKE * min(paces):
            return min(paces) * ALIKE >= 1.0
    return False


class _Interrupted(Exception):
    pass


class _Watched:
    """A target whose steps can be interrupted: then what they reserved is released."""

    def __init__(self, target: ProfiledTarget, goes_on: Callable[[], bool]) -> None:
        self._target, self._goes_on = target, goes_on
        self._sequences: dict[int, CachedSequence] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def try_reserve(self, work: BatchEntry) -> bool:
        self._sequences[id(work.sequence)] = work.sequence
        return self._target.try_reserve(work)

    def forward(self, works: list[BatchEntry]) -> Listed[LogitRows | None]:
        goes_on = False
        try:
            goes_on = self._goes_on()
        finally:
            if not goes_on:
                for work in works:
                    self._target.drop(work)
        if not goes_on:
            raise _Interrupted
        try:
            return self._target.forward(works)
        except Exception:
            for work in works:
                self._target.invalidate(work)
            raise

    def release_all(self) -> None:
        for sequence in self._sequences.values():
            self._target.release(sequence)


def is_kept(folder: Path, settings: Settings) -> bool:
    return _file(folder, settings).is_file()


def _file(folder: Path, settings: Settings) -> Path:
    return settings.home / "measured" / f"{_key(folder, settings)}.json"


def _keep(file: Path, exactness: Exactness | None, costs: StepCosts) -> None:
    """`exactness`: None if it was not looked at yet."""
    checked = exactness and asdict(exactness)
    write_cached(file, json.dumps({"exactness": checked, "costs": json.loads(costs.dumps())}))


def _build(text: str) -> tuple[Exactness | None, StepCosts]:
    data = json.loads(text)
    checked = data["exactness"]
    return None if checked is None else Exactness(**checked), StepCosts.loads(json.dumps(data["costs"]))


def _key(folder: Path, settings: Settings) -> str:
    shaping = {name: getattr(settings, name) for name in SHAPING}
    shaping |= {name: getattr(settings.plan, name) for name in PLAN_SHAPING}
    return digest([folder], settings=shaping, machine=[platform.machine(), processor(), os.cpu_count(), _gpu()])


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
