"""Record the trees of the real pipeline with the target's states at their rows.

Prompts go in; draft tokens, verdicts and hidden states come out. Every draft is verified, since a
predictor must learn from poor drafts too; which of them are worth a row is decided by prices, later.
"""

import random
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
LESS = 4  # one in so many rows that are no node's parent is kept


@dataclass(slots=True)
class Nodes:
    """Draft tokens of all trees, one entry of each list a node. `parents`: index of its parent, -1 for a root."""

    tokens: list[int] = field(default_factory=list)
    priors: list[float] = field(default_factory=list)  # chance, if the parent is right
    survival: list[float] = field(default_factory=list)  # chance of the whole path
    parents: list[int] = field(default_factory=list)
    is_right: list[bool] = field(default_factory=list)  # whether it is the target's choice after its parent
    is_reached: list[bool] = field(default_factory=list)  # whether all nodes above it are right
    prompts: list[int] = field(default_factory=list)  # number of the prompt
    rows: list[int] = field(default_factory=list)  # its parent's row of the states


@dataclass(slots=True)
class Recording:
    """Nodes, and the states of R rows: after some layers, and final."""

    nodes: Nodes
    states: dict[int, np.ndarray]  # (R, d) float16, by the number of layers passed
    finals: np.ndarray  # (R, d) float16, normed, as the head reads them
    tokens: np.ndarray  # (R,) int64, the rows' tokens; a sample of which tokens are frequent
    prompts: np.ndarray  # (R,) int64, number of the prompt

    def at_nodes(self, layer: int) -> np.ndarray:
        """Return the states of the nodes' parents after so many layers, (n, d) float32."""
        return self.states[layer][self.nodes.rows].astype(np.float32)


def record(
    settings: Settings, models: Models, layers: tuple[int, ...], each: int, max_tokens: int, seed: int
) -> Recording:
    """Run `each` prompts of every domain and record their trees, with states after `layers` layers.

    Raises ModelRefused, also for a target whose rows cannot leave a pass.
    """
    model = forward_of(models)
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
        report.advance(f"{len(runner.nodes.tokens)} draft tokens")
    report.end()
    return runner.recording()


def forward_of(models: Models) -> FusedForward:
    """Return the target's forward. Raises ModelRefused for one whose rows cannot leave a pass."""
    model = models.runner.model if isinstance(models.runner, ModelRunner) else None
    if not isinstance(model, FusedForward):
        raise ModelRefused("only on a CPU, and of Llama-shaped models, can rows be pruned")
    return model


class _Seen:
    """Checkpoints that drop no row and keep all states."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers, self.took_s = layers, 0.0
        self.states: dict[int, np.ndarray] = {}

    def keep(self, layer: int, states: np.ndarray) -> np.ndarray | None:
        """Keep the states after `layer`, (rows, d) float32, in float16; None: all rows stay."""
        self.states[layer] = states.astype(np.float16)
        return None

    def report(self) -> ExitReport:
        """Return that nothing left."""
        return ExitReport()


class _Recorder(ModelRunner):
    """A runner that records its passes."""

    def __init__(self, model: FusedForward, layers: tuple[int, ...], page_tokens: int) -> None:
        pages = KV_BYTES // bytes_per_page(*model.shape, page_tokens)
        super().__init__(model, kv_bytes=pages * bytes_per_page(*model.shape, page_tokens), page_tokens=page_tokens)
        self._fused, self._layers = model, layers
        self._seen = _Seen(layers)
        self.numbers: dict[str, int] = {}  # of the requests
        self.nodes = Nodes()
        self._states: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
        self._finals: list[np.ndarray] = []
        self._tokens: list[int] = []
        self._prompts: list[int] = []

    def _run(self, works: list[BatchEntry], packed: PackedBatch) -> list[CPURows | None]:
        """Run a pass as `ModelRunner` does, and record its nodes and states."""
        self._seen = _Seen(self._layers)
        found = super()._run(works, packed)
        kept: list[int] = []
        row = 0
        for work, logits in zip(works, found, strict=True):
            root = row + len(work.tokens) - 1
            row = root + 1 + len(work.tree)
            own = [*range(root - len(work.tokens) + 1, root, LESS), *range(root, row)]
            if logits is not None and len(work.tree):
                self._note(work, logits, len(self._tokens) + len(own) - 1 - len(work.tree))
            kept += own
            self._tokens += [[*work.tokens, *work.tree.tokens][i - root + len(work.tokens) - 1] for i in own]
            self._prompts += [self.numbers[work.sequence.id]] * len(own)
        finals = self._fused.last_hidden(row)
        self._finals.append(finals[kept].astype(np.float16))
        for layer in self._layers:
            self._states[layer].append(self._seen.states[layer][kept])
        return found

    def recording(self) -> Recording:
        """Return all that was recorded."""
        states = {layer: np.concatenate(parts) for layer, parts in self._states.items()}
        finals, tokens = np.concatenate(self._finals), np.array(self._tokens)
        return Recording(self.nodes, states, finals, tokens, np.array(self._prompts))

    def _checkpoints(self, works: list[BatchEntry]) -> Checkpoints:
        return self._seen

    def _note(self, work: BatchEntry, logits: CPURows, root: int) -> None:
        """Record a tree's nodes; `root` is the index of its root among the recorded rows."""
        nodes, tree, first = self.nodes, work.tree, len(self.nodes.tokens) - 1
        survival, reached = [1.0, *tree.survival], [True]
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True), start=1):
            is_right = int(logits.greedy[parent]) == token
            reached.append(reached[parent] and is_right)
            nodes.tokens.append(token)
            nodes.priors.append(survival[node] / survival[parent] if survival[parent] else 0.0)
            nodes.survival.append(survival[node])
            nodes.parents.append(first + parent if parent else -1)
            nodes.is_right.append(is_right)
            nodes.is_reached.append(reached[parent])
            nodes.prompts.append(self.numbers[work.sequence.id])
            nodes.rows.append(root + parent)
