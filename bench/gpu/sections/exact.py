"""Measure exact mode, in which rows keep their bits in any batch (design D1): its truth, its cost and its worth.

Random steps are run together and each entry alone, on two runners: `in company` counts the rows, 10,000 of them, and
those that came out with other bits or another token. Then every prompt's text is generated alone, and the same texts
are read again in a batch and as chains. A position whose token comes out otherwise is a flip. Random weights are the
worst case: their best tokens are nearly level. `exact, fused`: exact mode, but for attention's products and sums joined
to one rounding, which is what `enable_fp_fusion=False` costs and is worth.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import Weights, take
from app.engine.profile.profiler import CHECKS, check_exactness
from bench.gpu.random_models import ONE_B, TINY, random_weights, room, runner_of
from bench.gpu.random_steps import ROWS, RandomSteps, Sizes
from bench.gpu.sections.model import loaded
from bench.gpu.sections.steps import REPLAYS, Point, replay_of, works_of
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import Flip, flips, generate

SIZES = Sizes(sequences=24, prompt=200, text=600, nodes=8, has_branches=False)  # side branches have no promise
QUICK_ROWS, QUICK_SIZES = 4, Sizes(sequences=2, prompt=3, text=40, nodes=3, has_branches=False)


def measure(setting: Setting, found: Figures) -> None:
    """Write rows with other bits, step times and flips, exact and default, into `found`."""
    shape = replace(TINY, layers=1) if setting.is_quick else ONE_B
    _model(setting, random_weights(setting, shape), shape.vocab, found.setdefault(shape.name, {}))
    setting.free()
    if setting.folder is not None and not setting.is_quick:
        weights = take(loaded(setting.folder, setting.device, setting.dtype))
        _model(setting, weights, len(weights.embedding), found.setdefault(setting.folder.name, {}))


def _model(setting: Setting, weights: Weights, vocab_size: int, found: Figures) -> None:
    count, prompt_tokens, length = (2, 2, 2) if setting.is_quick else (32, 32, 128)
    draw = random.Random(0)
    prompts = [[draw.randrange(vocab_size) for _ in range(prompt_tokens)] for _ in range(count)]
    points = [Point(24, 1, 0)] if setting.is_quick else [Point(512, batch, 0) for batch in (1, 8, 64)]
    tokens = max(room(count, prompt_tokens + length + 8), *(room(p.batch, p.context + 1) for p in points), room(3, 200))
    for name, is_exact, fuses in (("exact", True, False), ("default", False, False), ("exact, fused", True, True)):
        runner = runner_of(weights, tokens, is_exact=is_exact, fuses=fuses)
        found[name] = {"step_ms": {p.batch: _step_ms(setting, runner, p, vocab_size) for p in points}}
        if not (setting.is_quick and fuses):
            checked = check_exactness(runner, vocab_size, CHECKS[:3] if setting.is_quick else CHECKS)
            found[name] |= {"rows": checked.rows, "rows_with_other_bits": checked.different}
            if is_exact or not setting.is_quick:
                found[name]["in company"] = _in_company(setting, weights, vocab_size, is_exact=is_exact, fuses=fuses)
            found[name]["flips"] = _flips_by_batch(setting, runner, prompts, length)
        print(f"{name:8} {found[name]}", flush=True)
        del runner
        setting.free()
    for base in ("default", "exact, fused"):
        pairs = found["exact"]["step_ms"].items()
        cost = found[f"exact / {base}"] = {batch: round(ms / found[base]["step_ms"][batch], 3) for batch, ms in pairs}
        print(f"exact / {base}, by batch: {cost}", flush=True)


@torch.inference_mode()
def _step_ms(setting: Setting, runner: DeviceRunner, point: Point, vocab_size: int) -> float:
    works = works_of(runner, point, vocab_size)
    replay = replay_of(runner, works)
    assert replay is not None
    ms = setting.device_ms(replay, times=REPLAYS)
    for work in works:
        runner.release(work.sequence)
    return round(ms, 4)


def _in_company(setting: Setting, weights: Weights, vocab_size: int, **rest: bool) -> Figures:
    """Return how many of the rows of random steps have other bits, or another token, than the same rows alone."""
    rows, sizes = (QUICK_ROWS, QUICK_SIZES) if setting.is_quick else (ROWS, SIZES)
    together, alone = (runner_of(weights, room(sizes.sequences, sizes.text), **rest) for _ in range(2))
    steps = RandomSteps([together, alone], vocab_size, sizes, apart=alone)
    while setting.has_time() and steps.compared.rows < rows:
        steps.run(1, setting.has_time)
    compared = steps.compared
    return {
        "rows": compared.rows,
        "rows_with_other_bits": compared.rows_with_other_bits,
        "flips_per_10000": round(compared.flips * 1e4 / max(1, compared.rows), 2),
    }


def _flips_by_batch(setting: Setting, runner: DeviceRunner, prompts: Sequence[list[int]], length: int) -> Figures:
    """Return the flips of texts that were generated alone, by the batch in which they are read again."""
    texts: list[list[int]] = []
    for prompt in prompts:
        if texts and not setting.has_time():
            break
        texts += generate(runner, [prompt], length)
    prompts = prompts[: len(texts)]
    apart = [(i, prompt, text) for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))]
    chains = [Flip(i, flip.position, flip.gap) for i, p, text in apart for flip in flips(runner, [p], [text], 7)]
    return {
        "tokens": len(texts) * length,
        "alone again": _summary(flips(runner, prompts[:1], texts[:1]), length),
        f"a batch of {len(texts)}": _summary(flips(runner, prompts, texts), len(texts) * length),
        "chains of 7": _summary(chains, len(texts) * length),
        f"a batch of {len(texts)} chains of 7": _summary(flips(runner, prompts, texts, 7), len(texts) * length),
    }


def _summary(found: list[Flip], tokens: int) -> Figures:
    """Return flips per 10000 tokens, the texts that change and from where on, and the widest gap in logits."""
    first = {i: min(flip.position for flip in found if flip.sequence == i) for i in {flip.sequence for flip in found}}
    return {
        "flips_per_10000": round(len(found) * 1e4 / tokens, 2),
        "texts_changed": len(first),
        "first_at": sorted(first.values()),
        "widest_gap": round(max((flip.gap for flip in found), default=0.0), 4),
    }
