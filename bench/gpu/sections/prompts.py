"""Time the reading of prompts, alone and beside sequences that decode: the time to the first token.

A prompt is read in chunks of the device's size, each in a step with a row of every sequence that decodes.
"""

import time
from itertools import product

import torch

from app.engine.cpu.equivalence import probe
from app.engine.gpu.runner import DeviceRunner
from app.engine.profile.gpu_profiler import CHUNK
from app.state import BatchEntry, Tree
from bench.gpu.random_models import EIGHT_B, TINY, random_weights, room, runner_of
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import reserve

BESIDE_CONTEXT = 512  # tokens in the cache of each sequence that decodes
LENGTHS, BESIDE = (512, 4096, 15872), (0, 32)  # of prompts; sequences that decode


def measure(setting: Setting, found: Figures) -> None:
    """Write a line for each length of a prompt and each number of sequences beside it into `found`."""
    shape, lengths, beside, context = (
        (TINY, (66,), (1,), 24) if setting.is_quick else (EIGHT_B, LENGTHS, BESIDE, BESIDE_CONTEXT)
    )
    weights = random_weights(setting, shape)
    runner = runner_of(weights, room(1, max(lengths)) + room(max(beside), context + 1))

    def read(tokens: int, beside: int) -> Figures:
        if setting.device.type == "cuda":
            _read(runner, shape.vocab, tokens, beside, context)  # what it compiles is not timed
        return _read(runner, shape.vocab, tokens, beside, context)

    points = ({"tokens": length, "beside": count} for length, count in product(lengths, beside))
    found["prompts"] = setting.lines(points, read)


@torch.inference_mode()
def _read(runner: DeviceRunner, vocab_size: int, length: int, count: int, context: int) -> Figures:
    prompt = probe(length, vocab_size)
    others = [reserve(runner, BatchEntry(probe(1, vocab_size), context, [1], Tree(), final=True)) for _ in range(count)]
    steps_s = []
    for start in range(0, length, CHUNK):
        tokens = prompt.tokens[start : start + CHUNK]
        work = reserve(runner, BatchEntry(prompt, start, tokens, Tree(), final=start + CHUNK >= length))
        started = time.perf_counter()
        runner.forward([work, *others])
        steps_s.append(time.perf_counter() - started)
    for one in (prompt, *(work.sequence for work in others)):
        runner.release(one)
    whole_s = sum(steps_s)
    return {
        "steps": len(steps_s),
        "first_token_ms": round(whole_s * 1e3, 3),
        "tokens_s": round(length / whole_s, 1),
        "longest_step_ms": round(max(steps_s) * 1e3, 3),
    }
