"""Test that the start launches every variant of every kernel that serving can ask for: later none is compiled.

Launches are noted and not run: a variant is what Triton would look up, or compile, for the arguments of a launch.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this machine")
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, compute_cache_key

from app.engine.gpu import graphs, runner, step
from app.engine.gpu.guesser import DeviceGuesser
from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.weights import take
from app.policy import Policy
from app.request import Sampling
from app.state import BatchEntry, CachedSequence, Tree
from kernels.compile import NoGPU
from kernels.sampling.top_logprobs import MAX_TOP
from tests import fakes
from tests.app.engine.counted_tokens import Counted
from tests.fakes import VOCAB

PAGE_TOKENS = 16
POSITIONS = 4096  # several slices of keys
Variant = tuple[str, str]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[Variant]:
    """Return the variants that were launched so far."""
    found: set[Variant] = set()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        _, keys, _, _, binder = self.device_caches["no device"]
        _, specialization, options = binder(*args, **kwargs)
        found.add((self.__name__, compute_cache_key(keys, specialization, options)))

    def captured(logits: torch.Tensor, run_step: Callable[[], Any]) -> Any:
        result, replay = uncaptured(logits, run_step)
        replay()  # as a capture's warm-up does
        return result, replay

    def choose(*args: Any) -> torch.Tensor:
        return chosen(*args).zero_()  # what no kernel has written may be no number

    uncaptured, chosen = graphs._uncaptured, step.choose
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(graphs, "_uncaptured", captured)
    monkeypatch.setattr(step, "choose", choose)
    monkeypatch.setattr(runner, "choose", choose)
    monkeypatch.setattr(driver, "_active", NoGPU(90))
    return found


def weights_of(family: str, dtype: torch.dtype) -> Any:
    model: Any = fakes.tiny(family, num_hidden_layers=1, max_position_embeddings=POSITIONS)
    return take(model.to(dtype))


def sampling(draw: random.Random) -> Sampling:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 3, "choice": 1},
        {"logit_bias": dict.fromkeys(range(draw.randint(1, VOCAB - 1)), 1.0)},
        {"frequency_penalty": 0.5},
        {"allowed_token_ids": tuple(range(draw.randint(1, VOCAB - 1)))},
    ]
    return Sampling(**draw.choice(kinds))


def entry(draw: random.Random, number: int) -> BatchEntry:
    """Draw the rows of a sequence somewhere in its text: some of a prompt, or a token with a tree."""
    context, nodes = draw.choice([0, 1, 100, 1500, 3000]), draw.choice([0, 0, 1, 4, 16])
    count = draw.choice([1, 1, 1, 2, 15, 16, 63, 64, 65, 200])
    sequence = CachedSequence(f"r{number}", [1] * (context + count), sampling(draw))
    sequence.logprobs = draw.choice([None, None, None, draw.randint(0, MAX_TOP)])
    final = draw.random() < 0.8
    parents = [draw.randint(0, node) for node in range(nodes if final and count + nodes <= 64 else 0)]
    tree = Tree([1] * len(parents), parents, [1.0] * len(parents), [("test",)] * len(parents))
    mask = (lambda history: np.arange(VOCAB) % 2 == 0) if draw.random() < 0.1 else None
    return BatchEntry(sequence, context, [1] * count, tree, final=final, mask=mask)


def serve(own: DeviceRunner, steps: int, most: int) -> None:
    draw = random.Random(0)
    for _ in range(steps):
        works = [entry(draw, i) for i in range(draw.choice([1, 1, 2, draw.randint(1, most)]))]
        if draw.random() < 0.5:  # no prompt beside them: a captured step
            works = [work for work in works if work.final and len(work.tokens) == 1] or works[:1]
        works = [work for work in works if own.try_reserve(work)]
        own.forward(works)
        for work in works:
            if work.final and draw.random() < 0.7:
                own.accept(work, work.tree.path(draw.randint(0, len(work.tree))))
            own.release(work.sequence)


@pytest.mark.parametrize(
    ("family", "dtype", "is_exact", "longest"),
    [
        ("llama", torch.bfloat16, False, None),
        ("qwen3", torch.bfloat16, True, None),
        ("qwen2", torch.float32, False, 512),  # and some sequences are longer
    ],
)
def test_serving_asks_for_nothing_that_the_start_has_not_compiled(
    launched: set[Variant], family: str, dtype: torch.dtype, is_exact: bool, longest: int | None
) -> None:
    weights = weights_of(family, dtype)
    own = DeviceRunner(
        weights,
        kv_bytes=40_000 * weights.token_bytes,
        page_tokens=PAGE_TOKENS,
        is_exact=is_exact,
        longest_tokens=longest,
    )
    own.rehearse(Policy().max_batch_tokens)
    known = set(launched)
    launched.clear()
    serve(own, steps=120, most=24)
    names = {name for name, _ in launched}
    assert {"ragged_attention_kernel", "join_slices_kernel", "_row_top_kernel"} <= names
    assert is_exact or "_kv_commit_kernel" in names, "paths of trees were moved"
    assert sorted(launched - known) == []


def test_a_drafters_guesses_ask_for_nothing_new(launched: set[Variant]) -> None:
    weights = weights_of("llama", torch.bfloat16)
    guesser = DeviceGuesser(weights, None, kv_bytes=8_000 * weights.token_bytes, page_tokens=PAGE_TOKENS)
    guesser.rehearse()
    known = set(launched)
    launched.clear()
    for count in (1, 2, 9, 16, 17, 64, 65, 300):
        for context in (0, 1500):
            sequence = CachedSequence("r", [1] * (context + count))
            works = [BatchEntry(sequence, context, [1] * count, Tree(), final=True)]
            assert guesser.try_reserve(works[0], 4)
            guesser._runner.logits(works)
            guesser.release(sequence)
    assert launched and sorted(launched - known) == []


@pytest.mark.parametrize("edits", [{"presence_penalty": 0.5}, {"logit_bias": {3: 1.0}}], ids=lambda edits: [*edits][0])
def test_rows_with_edits_read_no_more_than_a_texts_new_tokens(launched: set[Variant], edits: dict[str, Any]) -> None:
    weights = weights_of("llama", torch.bfloat16)
    own = DeviceRunner(weights, kv_bytes=8_000 * weights.token_bytes, page_tokens=PAGE_TOKENS, has_graphs=False)
    tokens = Counted([1, 2] * 500)
    sequence = CachedSequence("r", tokens, Sampling(**edits), cached=999)
    for _ in range(2):
        tokens.read = 0
        tree = fakes.tree([3, 4, 5], [0, 0, 1])
        work = BatchEntry(sequence, sequence.cached, [1], tree, final=True)
        assert own.try_reserve(work)
        own.forward([work])
        own.accept(work, [])
        tokens.append(1)
    assert tokens.read <= 1
