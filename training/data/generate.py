"""Let the target answer prompts in Paceline's own engine: many at once, speculation off, states kept.

An answer depends on its prompt and the data's seed alone: not on the other sequences of its batches, nor on how often
the run was stopped and resumed.
"""

import hashlib
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from app.assembly.devices import leave_cores_to
from app.assembly.verifier import verifier_over
from app.config import Settings
from app.engine.cpu.forward import Forward
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import load
from app.engine.cpu.runner import CPURows, ModelRunner
from app.engine.early_exit.controller import EarlyExitController
from app.engine.kv.pages import bytes_per_page
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.packing import PackedBatch
from app.engine.step_costs import StepCosts
from app.engine.text.tokenizer import Tokenizer
from app.errors import GenerationFailed, InvalidRequest
from app.messages import Record
from app.request import ChatMessage, GenerateRequest
from app.stages.admit import admit
from app.state import BatchEntry
from app.store.memory import MemoryStore
from app.verifier.measured_target import MeasuredTarget
from training.data.rows import LONGEST, RowFile
from training.progress_bar import Report
from training.prompts.draw import prompts

AT_ONCE = 48
GREEDY = 0.65  # share of prompts; the others are sampled, as requests are
TEMPERATURE, TOP_P = 0.8, 0.95
MOST_DRAWS = 20  # draws for each prompt wanted, before the templates count as exhausted
OWNER = "training"


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt and the settings of its answer."""

    domain: str
    text: str
    seed: int
    is_greedy: bool

    @property
    def key(self) -> str:
        """Return the hash that names the prompt's row in a file."""
        return hashlib.sha256(f"{self.domain}\n{self.text}".encode()).hexdigest()[:16]


def asks(domains: tuple[str, ...], count: int, seed: int) -> list[Ask]:
    """Draw `count` different prompts of each domain, the domains in turn. Raises InvalidRequest if the templates have
    fewer."""
    columns = []
    for domain in domains:
        found = list(islice(dict.fromkeys(islice(prompts(domain, seed), MOST_DRAWS * count)), count))
        if len(found) < count:
            raise InvalidRequest("prompts", f"the templates of {domain} give {len(found)} different ones, not {count}")
        columns.append([_ask(domain, text, seed) for text in found])
    return [ask for row in zip(*columns, strict=True) for ask in row]


def generate(wanted: list[Ask], model: Forward, tokenizer: Tokenizer, max_tokens: int, to: RowFile) -> None:
    """Append the answers that the file lacks, of `max_tokens` at most. Raises GenerationFailed."""
    todo = [ask for ask in wanted if ask.key not in to.done]
    if todo:
        report = Report("generating", len(wanted), len(wanted) - len(todo))
        _Generation(model, tokenizer, max_tokens, to, report).run(iter(todo))


def load_engine(folder: Path, settings: Settings) -> Forward:
    """Load the target as it is served on the CPU, in float32. Raises ModelRefused."""
    torch.set_num_threads(settings.verify_threads)
    model = load(folder)
    leave_cores_to(model)
    return model


class StatesRunner(ModelRunner):
    """A model runner that keeps the final hidden state of every row, by request and position."""

    def __init__(self, model: Forward, *, kv_bytes: int, page_tokens: int) -> None:
        # Prompts that begin alike must not share pages: rows that are not computed have no states.
        super().__init__(model, kv_bytes=kv_bytes, page_tokens=page_tokens, shares=False)
        self._pieces: dict[str, list[tuple[int, np.ndarray]]] = {}

    def _run(self, works: list[BatchEntry], packed: PackedBatch) -> list[CPURows | None]:
        """Run a pass as `ModelRunner` does, and keep its rows' final hidden states in float16."""
        out = super()._run(works, packed)
        if isinstance(self.model, FusedForward):
            states = self.model.last_hidden(sum(len(work.tokens) + len(work.tree) for work in works)).astype("f2")
            first = 0
            for work in works:
                piece = states[first : first + len(work.tokens)]
                self._pieces.setdefault(work.sequence.id, []).append((work.start, piece))
                first += len(work.tokens) + len(work.tree)
        return out

    def take(self, request_id: str, length: int) -> np.ndarray | None:
        """Return and drop the states of a request's first positions, (length, d) float16.

        None for a model whose hidden states cannot be read. A position that no pass computed is NaN.
        """
        pieces = self._pieces.pop(request_id, [])
        if not pieces:
            return None
        out = np.full((length, pieces[0][1].shape[1]), np.nan, np.float16)
        for start, piece in pieces:  # a position that was computed twice has the same bits both times
            out[start : start + len(piece)] = piece[: max(0, length - start)]
        return out


class _Generation:
    """One run of the engine over all prompts that are left."""

    def __init__(self, model: Forward, tokenizer: Tokenizer, max_tokens: int, to: RowFile, report: Report) -> None:
        self._settings = Settings(max_sequences=AT_ONCE)
        self._tokenizer, self._max_tokens, self._to, self._report = tokenizer, max_tokens, to, report
        self._has_chat = _has_chat(tokenizer)
        kv_bytes = AT_ONCE * -(-LONGEST // PAGE_TOKENS) * bytes_per_page(*model.shape, PAGE_TOKENS)
        self._runner = StatesRunner(model, kv_bytes=kv_bytes, page_tokens=PAGE_TOKENS)
        self._store = MemoryStore(ttl_s=60.0)
        costs = StepCosts({1: 1.0})  # without drafts no decision depends on them
        measured = MeasuredTarget(self._runner, costs, tokenizer.vocab_size, EarlyExitController())
        self._verifier = verifier_over(self._settings, measured, OWNER, self._store, owner=OWNER)
        self._asked: dict[str, Ask] = {}

    def run(self, todo: Iterator[Ask]) -> None:
        """Answer all prompts, AT_ONCE at a time, and append each answer when it ends. Raises GenerationFailed."""
        sequences = self._verifier.sequences
        while True:
            for ask in islice(todo, AT_ONCE - len(sequences)):
                self._submit(ask)
            if not sequences:
                return
            self._verifier.step(float("inf"))
            for record in self._verifier.take_ended():
                self._keep(record)

    def _submit(self, ask: Ask) -> None:
        request = GenerateRequest.model_validate(
            {
                "prompt": ask.text,
                "raw": not self._has_chat,
                "max_tokens": self._max_tokens,
                "temperature": 0.0 if ask.is_greedy else TEMPERATURE,
                "top_p": 1.0 if ask.is_greedy else TOP_P,
                "seed": ask.seed,
                "speculation": False,
            }
        )
        record = admit(request, self._tokenizer, self._settings, request_id=uuid.uuid4().hex, now_s=time.time())
        self._store.create(record, limit=self._settings.max_active_requests)
        self._store.assign(record.id, OWNER)
        self._verifier.adopt([record.id])
        self._asked[record.id] = ask

    def _keep(self, record: Record) -> None:
        ask, end = self._asked.pop(record.id), self._store.snapshot(record.id)
        if end.error:
            raise GenerationFailed(f"the target failed on a prompt of {ask.domain}: {end.error}")
        prompt, answer = list(record.prompt_ids), list(end.tokens)
        states = self._runner.take(record.id, len(prompt) + len(answer) - 1)
        self._to.append(ask.key, ask.domain, prompt, answer, states, is_greedy=ask.is_greedy)
        self._report.advance(f"{len(answer)} tokens, {ask.domain}")


def _ask(domain: str, text: str, seed: int) -> Ask:
    draw = random.Random(f"{seed}/{domain}/{text}")
    return Ask(domain, text, is_greedy=draw.random() < GREEDY, seed=draw.randrange(2**31))


def _has_chat(tokenizer: Tokenizer) -> bool:
    """Return whether the model has a chat template; a base model has none, and continues prompts as they stand."""
    try:
        tokenizer.chat([ChatMessage(role="user", content="?")])
    except InvalidRequest:
        return False
    return True
