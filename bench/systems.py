"""Make the arms that `./paceline bench` compares: transformers, the in-process pipeline, and a whole deployment.

An arm runs a list of prompts from the chat template, so many at once, and returns the token ids, the seconds, and the
times to the first token. The next prompt begins when one ends, transformers' batches when all do: in a burst, whose
sequences end at different times, the last ones would have the machine alone. Without fields of a sampled request all
decode greedily.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import StoppingCriteriaList

from app.assembly.local import build_local
from app.config import ROOT, Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.hf_reader import read
from app.engine.weights.resolve import target_folder
from app.messages import Record
from app.request import ChatMessage, GenerateRequest

# The same prompts come in every arm: with a prefix cache a later arm would reuse the work of an earlier one.
ALIKE = {"PACELINE_PREFIX_CACHE": "0"}


@dataclass(frozen=True, slots=True)
class Run:
    """Hold one measurement, in seconds; `token_ids` by prompt: exactness is checked on every run."""

    seconds: float
    token_ids: tuple[tuple[int, ...], ...]
    ttft_s: tuple[float, ...]
    rounds: int

    @property
    def tokens(self) -> int:
        """Return the tokens of all prompts."""
        return sum(len(ids) for ids in self.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens of all prompts a second."""
        return self.tokens / self.seconds


Arm = Callable[[list[str], int], Run]


def transformers_arm(settings: Settings, max_tokens: int) -> Arm:
    """Return the arm of the unmodified model's `generate`, float32: prompts as batches, padded on the left."""
    folder = target_folder(settings)
    model: Any = read(folder).eval()
    tokenizer = Tokenizer(folder)

    def run(prompts: list[str], at_once: int) -> Run:
        runs = [run_batch(prompts[i : i + at_once]) for i in range(0, len(prompts), at_once)]
        return Run(
            sum(one.seconds for one in runs),
            tuple(ids for one in runs for ids in one.token_ids),
            tuple(seconds for one in runs for seconds in one.ttft_s),
            sum(one.rounds for one in runs),
        )

    @torch.inference_mode()
    def run_batch(prompts: list[str]) -> Run:
        threads = torch.get_num_threads()
        torch.set_num_threads(settings.verify_threads)  # the pipeline beside it keeps torch to one
        started = time.perf_counter()
        first_s: list[float] = []
        batch = [tokenizer.chat([ChatMessage(role="user", content=prompt)]) for prompt in prompts]
        width = max(len(ids) for ids in batch)
        ids = torch.tensor([[0] * (width - len(one)) + one for one in batch])
        seen = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in batch])

        def look(generated: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
            first_s.append(time.perf_counter() - started)
            return torch.zeros(len(generated), dtype=torch.bool)

        out = model.generate(
            ids, attention_mask=seen, max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.eos_ids[0],
            stopping_criteria=StoppingCriteriaList([look]),
        )  # fmt: skip
        seconds = time.perf_counter() - started
        torch.set_num_threads(threads)
        texts = tuple(_ended(one, tokenizer.eos_ids) for one in out[:, width:].tolist())
        return Run(seconds, texts, tuple(first_s[:1]) * len(batch), sum(len(text) for text in texts))

    return run


def _ended(tokens: list[int], eos_ids: Collection[int]) -> tuple[int, ...]:
    """Cut after the first end token: padding follows it."""
    end = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tuple(tokens[: end + 1])


def local_arms(settings: Settings, max_tokens: int, **fields: object) -> tuple[Arm, Arm]:
    """Return the arms (speculation on, off) of one in-process pipeline."""
    pipeline = build_local(settings)

    def run(prompts: list[str], at_once: int, *, speculation: bool) -> Run:
        started = time.perf_counter()
        wishes = [_request(p, max_tokens, speculation=speculation, **fields) for p in prompts]
        records: list[Record] = []
        while len(records) < len(wishes) or pipeline.verifier.sequences:
            free = at_once - len(pipeline.verifier.sequences)
            records += [pipeline.submit(wish, settings) for wish in wishes[len(records) :][:free]]
            pipeline.step()
        seconds = time.perf_counter() - started
        ends = [pipeline.store.snapshot(record.id) for record in records]
        ttft = tuple((end.stats.first_token_s or 0.0) - end.record.created_s for end in ends)
        return Run(seconds, tuple(end.tokens for end in ends), ttft, sum(end.stats.rounds for end in ends))

    return partial(run, speculation=True), partial(run, speculation=False)


def server_arms(url: str, max_tokens: int, **fields: object) -> tuple[Arm, Arm]:
    """Return the arms (speculation on, off) of a running deployment, through its JSON API."""

    def run(prompts: list[str], at_once: int, *, speculation: bool) -> Run:
        wishes = [_request(prompt, max_tokens, speculation=speculation, **fields) for prompt in prompts]
        started = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            answers = [*pool.map(partial(_post, url + "/api/generate"), wishes)]
        seconds = time.perf_counter() - started
        return Run(
            seconds,
            tuple(tuple(answer["token_ids"]) for answer in answers),
            tuple(answer["timing"]["ttft_s"] for answer in answers),
            sum(answer["speculation"]["rounds"] for answer in answers),
        )

    return partial(run, speculation=True), partial(run, speculation=False)


def _request(prompt: str, max_tokens: int, **fields: object) -> GenerateRequest:
    return GenerateRequest.model_validate({"prompt": prompt, "max_tokens": max_tokens, **fields})


def _post(url: str, request: GenerateRequest) -> dict[str, Any]:
    body = request.model_dump_json(exclude_defaults=True).encode()
    call = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(call, timeout=600) as answer:
        return json.load(answer)


INSTANCE = "bench"


def start_server(instance: str = INSTANCE, **settings: str) -> str:
    """Start a deployment with these settings and return its URL. Raises CalledProcessError."""
    environment = {**os.environ, "PACELINE_KEYS": "", **settings}
    subprocess.run([*PACELINE, "up", "-d", "--instance", instance], check=True, cwd=ROOT, env=environment)
    command = [*PACELINE, "status", "--json", "--instance", instance]
    status = subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    return str(json.loads(status.stdout)["url"])


def stop_server(instance: str = INSTANCE, **settings: str) -> None:
    """Stop a deployment started with these settings. Raises CalledProcessError."""
    subprocess.run([*PACELINE, "down", "--instance", instance], check=True, cwd=ROOT, env={**os.environ, **settings})


PACELINE = (sys.executable, "-m", "app.cli.main")
