"""Compare paged attention with plain softmax over each row's own keys, and with itself in other
batches.
"""

import itertools
from array import array

import pytest
import torch

from app.engine.cpu.attention_tiles import Layout
from app.engine.kv.pages import KVCache, PagePool
from app.engine.packing import plan
from app.state import BatchEntry, CachedSequence
from kernels.attention.paged_attention import paged_attention
from tests import fakes

HEADS = [(4, 2, 8), (3, 3, 5), (8, 1, 16), (9, 3, 64), (1, 1, 4), (16, 2, 24)]  # (H, HK, D)
SPANS = [[(0, 1)], [(0, 33)], [(5, 1), (0, 40), (31, 2), (100, 3)], [(15, 17), (16, 16)], [(0, 7), (64, 1), (3, 60)]]


class Case:
    """Sequences of (cached, new) tokens with random queries, keys and values for all of their positions."""

    def __init__(self, spans: list[tuple[int, int]], heads: tuple[int, int, int], page_tokens: int = 16) -> None:
        self.num_heads, self.num_key_heads, self.head_dim = heads
        self.spans = spans
        generator = torch.Generator().manual_seed(len(spans) + sum(heads))

        def random(length: int, count: int) -> torch.Tensor:
            return torch.randn(length, count, self.head_dim, generator=generator)

        self.q = [random(cached + new, self.num_heads) for cached, new in spans]
        self.k = [random(cached + new, self.num_key_heads) for cached, new in spans]
        self.v = [random(cached + new, self.num_key_heads) for cached, new in spans]
        self.pool = PagePool(64, page_tokens)
        self.kv = KVCache(1, 64, self.num_key_heads, self.head_dim, page_tokens)
        self.kv.keys.fill_(1e3)  # what no row may see must not matter
        self.kv.values.fill_(1e3)
        self.pool.try_grow([], page_tokens)  # the first page belongs to no sequence
        self.states = [fakes.cached([0] * (cached + new)) for cached, new in spans]
        for (cached, new), state in zip(spans, self.states, strict=True):
            self.pool.try_grow(state.pages, cached + new)
        for i, (cached, _) in enumerate(spans):
            self.attend([i], 0, cached)

    def attend(self, chosen: list[int], start: int | None = None, end: int | None = None, **how) -> list[torch.Tensor]:
        """Return the outputs of the chosen sequences' rows `start ... end - 1`, by default the new
        ones.

        They are computed together.
        """
        window = how.pop("window", None)
        works = [self._work(i, start, end) for i in chosen]
        if not sum(len(work.tokens) for work in works):
            return []
        batch = Layout(plan(works, self.kv), self.num_heads, self.num_key_heads)
        q, k, v = (
            torch.cat([values[i][work.start :][: len(work.tokens)] for i, work in zip(chosen, works, strict=True)])
            for values in (self.q, self.k, self.v)
        )
        batch.store(0, k, v)
        out = paged_attention(q, self.kv.keys[0], self.kv.values[0], batch.tiles(window), self.head_dim**-0.5, **how)
        return list(out.split([len(work.tokens) for work in works]))

    def plain(self, i: int, window: int | None = None, softcap: float | None = None) -> torch.Tensor:
        """Compute the definition in double precision, one row and head at a time."""
        cached, new = self.spans[i]
        fold = self.num_heads // self.num_key_heads
        out = torch.empty(new, self.num_heads, self.head_dim, dtype=torch.float64)
        for row, head in itertools.product(range(new), range(self.num_heads)):
            last = cached + row
            first = 0 if window is None else max(0, last - window + 1)
            keys = self.k[i][first : last + 1, head // fold].double()
            scores = keys @ self.q[i][last, head].double() * self.head_dim**-0.5
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            out[row, head] = scores.softmax(0) @ self.v[i][first : last + 1, head // fold].double()
        return out

    def _work(self, i: int, start: int | None, end: int | None) -> BatchEntry:
        state: CachedSequence = self.states[i]
        return fakes.work(state, self.spans[i][0] if start is None else start, end)


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("heads", HEADS)
def test_every_row_attends_to_its_own_past(heads, spans):
    case = Case(spans, heads)
    for i, found in enumerate(case.attend(list(range(len(spans))))):
        torch.testing.assert_close(found.double(), case.plain(i), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [{"window": 1}, {"window": 9}, {"window": 40, "softcap": 2.0}, {"softcap": 0.5}])
@pytest.mark.parametrize("heads", HEADS[:2])
def test_windows_and_softcaps(heads, how):
    case = Case(SPANS[2], heads)
    for i, found in enumerate(case.attend([0, 1, 2, 3], **how)):
        torch.testing.assert_close(found.double(), case.plain(i, **how), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("page_tokens", [16, 128])
@pytest.mark.parametrize("heads", [heads for heads in HEADS if heads[2] % 4 == 0])
def test_a_row_has_the_same_bits_in_any_batch(heads, page_tokens):
    spans = [(5, 1), (0, 40), (31, 2), (100, 3), (40, 17), (3, 9)]
    case = Case(spans, heads, page_tokens)
    alone = [case.attend([i])[0] for i in range(len(spans))]
    by_one = [torch.cat([case.attend([i], p, p + 1)[0] for p in range(c, c + n)]) for i, (c, n) in enumerate(spans)]
    for chosen in ([0, 1, 2, 3, 4, 5], [5, 0], [3, 2], [1, 4, 5], [0, 2, 3]):
        for i, found in zip(chosen, case.attend(chosen), strict=True):
            assert torch.equal(found, alone[i])
            assert torch.equal(found, by_one[i])


def test_pages_apart_give_the_same_bits_as_pages_side_by_side():
    close, apart = Case([(40, 3)], (4, 2, 8)), Case([(40, 3)], (4, 2, 8))
    far = [60, 2, 33]
    for cache in (apart.kv.keys, apart.kv.values):
        cache[0][far] = cache[0][list(apart.states[0].pages)].clone()
    apart.states[0].pages[:] = array("i", far)
    assert torch.equal(close.attend([0])[0], apart.attend([0])[0])
