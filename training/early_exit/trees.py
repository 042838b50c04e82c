"""Record the draft tokens of the real pipeline with the target's states at their parents, and the verdicts on them.

Every draft is verified, since the rank test must see poor drafts too.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from app.assembly.local import Models, build_local
from app.config import Settings
from app.engine.cpu.forward import Checkpoints
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.runner import CPURows, ModelRunner
from app.engine.early_exit.controller import ExitReport
from app.engine.kv.pages import bytes_per_page
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.packing import PackedBatch
from app.engine.step_costs import StepCosts
from app.errors import ModelRefused
from app.request import GenerateRequest
from app.state import BatchEntry
from training.progress_bar import Report
from training.prompts.draw import DOMAINS, prompts

AT_ONCE = 8
KV_BYTES = 400 * 2**20
FREE = {1: 1.0, 4096: 1.0}  # seconds by rows: rows cost nothing, so every draft is verified


@dataclass(slots=True)
class Recording:
    """Draft tokens whose parents are right, an entry of each list a token, and the tokens of all rows."""

    tokens: list[int] = field(default_factory=list)
    is_right: list[bool] = field(default_factory=list)  # whether it is the target's choice
    prompts: list[int] = field(default_factory=list)  # number of the prompt
    states: dict[int, list[np.ndarray]] = field(default_factory=dict)  # by layers passed: (d,) float32 at the parent
    frequent: Counter[int] = field(default_factory=Counter)


def record(
    settings: Settings, models: Models, layers: tuple[int, ...], each: int, max_tokens: int, seed: int
) -> Recording:
    """Run `each` prompts of every domain and record their trees, with states after `layers` layers.

    Raises ModelRefused, also for a target whose rows cannot leave a pass.
    """
    model = models.runner.model if isinstance(models.runner, ModelRunner) else None
    if not isinstance(model, FusedForward):
        raise ModelRefused("only on a CPU, and of Llama-shaped models, can rows leave a pass early")
    if not 0 < min(layers) <= max(layers) < model.shape.num_layers:
        raise ModelRefused(f"checkpoints lie behind layers 1 ... {model.shape.num_layers - 1}")
    runner = _Recorder(model, layers, PAGE_TOKENS)
    pipeline = build_local(settings, replace(models, runner=runner, costs=StepCosts(FREE).dumps()))
    asked = [prompt for domain in DOMAINS for prompt in islice(prompts(domain, seed), each)]
    random.Random(seed).shuffle(asked)
    report = Report("recording", -(-len(asked) // AT_ONCE))
    for first in range(0, len(asked), AT_ONCE):
        for number, prompt in enumerate(asked[first : first + AT_ONCE], start=first):
            made = pipeline.submit(GenerateRequest(prompt=prompt, max_tokens=max_tokens), settings)
            runner.numbers[made.id] = number
        while pipeline.verifier.sequences:
            pipeline.step()
        report.advance(f"{len(runner.recording.tokens)} draft tokens")
    report.end()
    return runner.recording


class _Seen:
    """Checkpoints that drop no row and keep all states."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.took_s = layers, 0.0
        self.states: dict[int, np.ndarray] = {}

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """Keep a copy of the states after `layer`, (rows, d) float32; None: all rows stay."""
        self.states[layer] = states.copy()
        return None

    def report(self) -> ExitReport:
        """Return that no row left."""
        return ExitReport()


class _Recorder(ModelRunner):
    """A runner that records its passes."""

    def __init__(self, model: FusedForward, layers: tuple[int, ...], page_tokens: int) -> None:
        pages = KV_BYTES // bytes_per_page(*model.shape, page_tokens)
        super().__init__(model, kv_bytes=pages * bytes_per_page(*model.shape, page_tokens), page_tokens=page_tokens)
        self._seen = _Seen(layers)
        self.numbers: dict[str, int] = {}  # of the requests
        self.recording = Recording(states={layer: [] for layer in layers})

    def _run(self, works: list[BatchEntry], packed: PackedBatch) -> list[CPURows | None]:
        """Run a pass as `ModelRunner` does, and record its draft tokens."""
        found = super()._run(works, packed)
        root = -1
        for work, logits in zip(works, found, strict=True):
            root += len(work.tokens)
            self.recording.frequent.update([*work.tokens, *work.tree.tokens])
            if logits is not None:
                self._note(work, logits, root)
            root += len(work.tree)
        return found

    def _checkpoints(self, works: list[BatchEntry]) -> Checkpoints:
        return self._seen

    def _note(self, work: BatchEntry, logits: CPURows, root: int) -> None:
        """Record a tree's nodes whose parents are right; `root`: its row."""
        kept, right = self.recording, {0}
        for node, (token, parent) in enumerate(zip(work.tree.tokens, work.tree.parents, strict=True), start=1):
            if parent not in right:
                continue
            is_right = int(logits.greedy[parent]) == token
            if is_right:
                right.add(node)
            kept.tokens.append(token)
            kept.is_right.append(is_right)
            kept.prompts.append(self.numbers[work.sequence.id])
            for layer, states in kept.states.items():
                states.append(self._seen.states[layer][root + parent].copy())
