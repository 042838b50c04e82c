"""Compare a real model's texts: the engine's greedy tokens, all prompts in one batch, with transformers' `generate`.

In float32 they must be the same. In bfloat16 near ties fall either way: the tokens up to the first other one count.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from app.engine.gpu.weights import take
from app.engine.weights.hf_reader import read
from bench.gpu.random_models import room, runner_of, silent
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import generate
from bench.prompts import PROMPTS


def measure(setting: Setting, found: Figures) -> None:
    """Write texts alike and different by dtype into `found`. Raises AssertionError for a difference in float32."""
    if setting.folder is None:
        found["left_out"] = "no --model was given"
        return
    kinds = (torch.float32, torch.bfloat16) if setting.device.type == "cuda" else (torch.float32,)
    for dtype in kinds:
        name = str(dtype).removeprefix("torch.")
        found[name] = _texts(setting, setting.folder, dtype)
        setting.free()
        print(f"{name:10} {found[name]}", flush=True)
    if found["float32"]["same"] < found["float32"]["texts"]:
        raise AssertionError("in float32 the engine says something else than the model's own modules")


def _texts(setting: Setting, folder: Path, dtype: torch.dtype) -> Figures:
    count, length = (2, 3) if setting.is_quick else (20, 64)
    model = loaded(folder, setting.device, dtype)
    prompts = _prompts(folder, model.config.vocab_size, count)
    expected: list[list[int]] = []
    while len(expected) < count and (not expected or setting.has_time()):
        expected.append(own_text(model, prompts[len(expected)], length))
    prompts = prompts[: len(expected)]
    runner = runner_of(take(model), room(count, max(map(len, prompts)) + length))
    alike = [_alike(*pair) for pair in zip(generate(runner, prompts, length), expected, strict=True)]
    return {"texts": len(prompts), "same": alike.count(length), "tokens": length, "alike_until": alike}


def loaded(folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """Load the folder's model onto the device."""
    model: Any = read(folder, dtype)
    return silent(model.to(device))


@torch.inference_mode()
def own_text(model: Any, prompt: Sequence[int], length: int, **rest: Any) -> list[int]:
    """Return the `length` token ids that the model's own `generate` adds to the prompt."""
    ids = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length, **rest)
    text: list[int] = out[0, ids.shape[1] :].tolist()
    return text


def _prompts(folder: Path, vocab_size: int, count: int) -> list[list[int]]:
    """Return prompts of every domain through the folder's tokenizer; spread token ids where it has none."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        print(f"no tokenizer, so any ids will do: {error}"[:200], flush=True)
        return [[(i * 101 + j * 7919 + 13) % vocab_size for j in range(24 + i)] for i in range(count)]
    texts = (prompt for group in zip(*PROMPTS.values(), strict=True) for prompt in group)
    return [list(tokenizer(text)["input_ids"]) for text in islice(texts, count)]


def _alike(text: Sequence[int], expected: Sequence[int]) -> int:
    """Count the tokens before the first different one."""
    pairs = enumerate(zip(text, expected, strict=True))
    return next((i for i, (a, b) in pairs if a != b), len(text))
