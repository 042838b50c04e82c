"""Run transformers beside the pipeline in `lab cooperate`: `generate`, and assisted generation
with our drafter.

The assistant is made as fast for transformers as it is for us: a drafter with a trimmed head keeps
it, and its logits are spread over the whole vocabulary, minus infinity where it has no row.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import StoppingCriteriaList

from app.config import Settings
from app.engine.drafters.loader import modules_of, parts_of
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.hf_reader import read
from app.engine.weights.resolve import drafter_folder, target_folder
from app.request import ChatMessage
from bench.systems import transformers_arm
from lab.cooperate.systems import Run


def generate_arm(settings: Settings, max_tokens: int) -> Callable[[list[str]], Run]:
    """Return the arm of transformers' `generate`; several prompts are one padded batch."""
    arm = transformers_arm(settings, max_tokens)

    def run(prompts: list[str]) -> Run:
        found = arm(prompts)
        return Run(found.seconds, found.token_ids, found.ttft_s, (found.seconds,) * len(prompts))

    return run


class AssistedArm:
    """An arm of transformers' assisted generation, one prompt at a time: it takes no batches."""

    def __init__(self, settings: Settings, drafter: str, max_tokens: int) -> None:
        folder = target_folder(settings)
        self._model: Any = read(folder).eval()
        self._assistant = assistant(drafter_folder(drafter), folder)
        self._tokenizer = Tokenizer(folder)
        self._threads = settings.verify_threads
        self._max_tokens = max_tokens
        self.length: int | None = None  # tokens assisted at a time; None: transformers' own schedule

    @torch.inference_mode()
    def __call__(self, prompts: list[str]) -> Run:
        """Run the prompts one after the other."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)  # the pipeline beside it keeps torch to one
        started = time.perf_counter()
        texts, first_s, ends_s = [], [], []
        for prompt in prompts:
            text, at_s = self._one(prompt)
            texts.append(text)
            first_s.append(at_s - started)
            ends_s.append(time.perf_counter() - started)
        torch.set_num_threads(threads)
        return Run(ends_s[-1], tuple(texts), tuple(first_s), tuple(ends_s))

    def _one(self, prompt: str) -> tuple[tuple[int, ...], float]:
        """Return the prompt's generated token ids, and when the first of them were there
        (`time.perf_counter`)."""
        ids = torch.tensor([self._tokenizer.chat([ChatMessage(role="user", content=prompt)])])
        seen_s: list[float] = []

        def look(generated: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
            seen_s.append(time.perf_counter())
            return torch.zeros(len(generated), dtype=torch.bool)

        self._schedule()
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self._max_tokens, do_sample=False,
            pad_token_id=self._tokenizer.eos_ids[0], assistant_model=self._assistant,
            stopping_criteria=StoppingCriteriaList([look]),
        )  # fmt: skip
        return tuple(out[0, ids.shape[1] :].tolist()), seen_s[0]

    def _schedule(self) -> None:
        config = self._assistant.generation_config
        if self.length is not None:  # a schedule of its own would change what it is given from one prompt to the next
            config.num_assistant_tokens = self.length
            config.num_assistant_tokens_schedule = "constant"


def assistant(folder: Path, target: Path) -> Any:
    """Load the drafter as a transformers model with the target's whole vocabulary. Raises
    ModelRefused."""
    card = folder / "drafter.json"
    if not card.exists() or json.loads(card.read_text()).get("embedding") != "target":
        return read(folder).eval()
    parts = parts_of(folder, target, None)
    whole: Any = modules_of(folder, parts)
    if parts.features is not None:  # transformers gives it no target states: add the absent one everywhere
        table = whole.model.embed_tokens
        table.weight = nn.Parameter(table.weight + torch.from_numpy(parts.features.absent), requires_grad=False)
    whole.lm_head = SpreadHead(whole.lm_head, parts.head_ids, whole.config.vocab_size)
    return whole.eval()


class SpreadHead(nn.Module):
    """A trimmed head (Vh rows) whose logits are spread to their places in the whole vocabulary
    (V)."""

    def __init__(self, head: nn.Linear, head_ids: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        self._head = head  # (Vh, d)
        self._vocab_size = vocab_size
        self._head_ids = head_ids  # (Vh,)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map hidden states (..., d) to logits (..., V) of the same dtype, -inf for a token without
        a row."""
        logits = hidden.new_full((*hidden.shape[:-1], self._vocab_size), float("-inf"))
        logits[..., self._head_ids] = self._head(hidden)
        return logits
