"""Compare two forwards' logits."""

import torch

from app.config import Activations
from app.engine.cpu.forward import Forward
from app.engine.kv.pages import KVCache, PagePool
from app.engine.packing import plan
from app.state import BatchEntry, CachedSequence, Tree

TOKENS = 40
TOLERANCE: dict[Activations, float] = {"float32": 1e-3, "int8": 1.0}  # of the logits' standard deviation


@torch.inference_mode()
def trial(forward: Forward, passes: int = 2) -> torch.Tensor:
    """Return the logits (N, V) of a probe's second half, read in one pass or after the first."""
    kv = KVCache(forward.shape.num_layers, 4, forward.shape.num_key_heads, forward.shape.head_dim, 32)
    sequence = probe(TOKENS, forward.vocab_size)
    PagePool(4, 32).try_grow(sequence.pages, TOKENS)
    size = TOKENS // passes
    for first in range(0, TOKENS, size):
        step = plan([BatchEntry(sequence, first, sequence.tokens[first : first + size], Tree(), final=False)], kv)
        step.wanted = list(range(size))[-(TOKENS // 2) :]
        found = forward.logits(step).logits
    return found.clone()


def distance(found: torch.Tensor, expected: torch.Tensor, spread: float) -> float:
    """Return the largest difference of two sets of logits (N, V), in units of `spread`; NaN if any logit is NaN."""
    return float((found - expected).abs().max() / spread)


def probe(length: int, vocab_size: int) -> CachedSequence:
    return CachedSequence("probe", [(i * 7919 + 13) % vocab_size for i in range(length)])
