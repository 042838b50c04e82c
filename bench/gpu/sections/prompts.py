"""Time the reading of prompts, alone and beside sequences that decode: the time to the first token.

A prompt is read in chunks of the device's size, each in a step with a row of every sequence that
decodes.
"""

import time

import torch

from app.engine.cpu.equivalence import probe
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import take
from app.engine.profile.gpu_profiler import CHUNK
from app.state import BatchEntry, Tree
from bench.gpu.random_models import EIGHT_B, TINY, random_model, room, runner_of
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import reserve

BESIDE_CONTEXT = 512  # tokens in the cache of each sequence that decodes
LENGTHS, BESIDE = (512, 4096, 15872), (0, 32)  # of prompts; sequences that decode


def measure(setting: Setting, found: Figures) -> None:
    """Write a line for each length of a prompt and each number of sequences beside it into `found`."""
    shape, lengths, beside, context = (
        (TINY, (66,), (1,), 24) if setting.is_quick else (EIGHT_B, LENGTHS, BESIDE, BESIDE_CONTEXT)
    )
    weights = take(random_model(setting, shape))
    setting.free()
    runner = runner_of(weights, room(1, max(lengths)) + room(max(beside), context + 1))
    lines = found["prompts"] = []
    for length in lengths:
        for count in beside:
            if not setting.has_time():
                lines.append({"tokens": length, "beside": count, "left_out": True})
                continue
            if setting.device.type == "cuda":
                _read(runner, shape.vocab, length, count, context)  # what it compiles is not timed
            lines.append(_read(runner, shape.vocab, length, count, context))
            print(lines[-1], flush=True)


@torch.inference_mode()
def _read(runner: DeviceRunner, vocab_size: int, length: int, count: int, context: int) -> Figures:
    size = CHUNK
    prompt = probe(length, vocab_size)
    others = [reserve(runner, BatchEntry(probe(1, vocab_size), context, [1], Tree(), final=True)) for _ in range(count)]
    steps_s = []
    for start in range(0, length, size):
        tokens = prompt.tokens[start : start + size]
        work = reserve(runner, BatchEntry(prompt, start, tokens, Tree(), final=start + size >= length))
        started = time.perf_counter()
        runner.forward([work, *others])
        steps_s.append(time.perf_counter() - started)
    for one in (prompt, *(work.sequence for work in others)):
        runner.release(one)
    whole_s = sum(steps_s)
    return {
        "tokens": length,
        "beside": count,
        "steps": len(steps_s),
        "first_token_ms": round(whole_s * 1e3, 3),
        "tokens_s": round(length / whole_s, 1),
        "longest_step_ms": round(max(steps_s) * 1e3, 3),
    }
