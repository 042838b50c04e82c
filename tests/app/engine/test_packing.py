"""Packed rows stand and attend as their tree says, read back from the batch's own arrays."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.cpu.attention_tiles import Layout
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.runner import ModelRunner
from app.engine.kv.pages import KVCache
from app.engine.packing import forks, plan
from app.state import BatchEntry, Tree
from kernels.attention.paged_attention import Tile
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

TINY = choose_forward(fakes.tiny(num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1))


@st.composite
def trees(draw, max_nodes: int = 20) -> Tree:
    size = draw(st.integers(0, max_nodes))
    near = draw(st.booleans())
    return fakes.tree(
        draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size)),
        [draw(st.integers(max(0, i - 2) if near else 0, i)) for i in range(size)],
    )


def path_to(drafts: Tree, node: int) -> list[int]:
    return [] if node == 0 else [*path_to(drafts, drafts.parents[node - 1]), node]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(trees())
def test_main_branch_and_forks_compute_every_node_once(drafts):
    main, branches = drafts.main_branch(), forks(drafts)
    own = [node for fork in branches for node in fork.path[fork.first :]]
    assert sorted(main + own) == list(range(1, len(drafts) + 1))
    for fork in branches:
        assert fork.path == path_to(drafts, fork.path[-1])
        assert 0 <= fork.leaves <= fork.first < len(fork.path)
        assert set(fork.path[: fork.leaves]) <= set(main)
        assert not set(fork.path[fork.leaves :]) & set(main)


def test_a_chain_has_no_forks():
    assert forks(fakes.tree([5, 6, 7])) == []
    assert fakes.tree([5, 6, 7]).main_branch() == [1, 2, 3]


def test_the_main_branch_follows_first_children():
    assert fakes.tree(range(6), [0, 0, 1, 2, 1, 3]).main_branch() == [1, 3, 6]


class Spelled:
    """A model that writes each row's position into the cache and reads back all that the row sees."""

    def __init__(self, works: list[BatchEntry], runner: ModelRunner) -> None:
        self.kv = KVCache(1, runner.pool.num_pages, 1, 2, PAGE_TOKENS)
        self.kv.keys.fill_(-7.0)
        for work in works:  # what was cached before
            for position, token in enumerate(work.sequence.tokens[: work.start]):
                page = work.sequence.pages[position // PAGE_TOKENS]
                self.kv.keys[0, page, 0, :, position % PAGE_TOKENS] = torch.tensor([token, position]).float()
        self.plan = plan(works, self.kv)
        self.layout = Layout(self.plan, 2, 1)
        rows = torch.tensor([self.plan.ids, self.plan.positions]).float().T[:, None]
        self.layout.store(0, rows, rows)

    def seen(self, row: int, window: int | None = None) -> list[tuple[int, int]]:
        """Return (token, position) of every slot that a row sees, in the order of its pages."""
        for tile in self.layout.tiles(window):
            rows = numbers(tile.rows)
            if row in rows:
                return self._slots(tile, rows.index(row))
        raise AssertionError(f"row {row} is in no tile")

    def _slots(self, tile: Tile, line: int) -> list[tuple[int, int]]:
        found = []
        fold = 2
        for page, mask in zip(numbers(tile.pages), tile.mask, strict=True):
            assert torch.equal(mask[line * fold], mask[line * fold + 1])
            for offset in torch.nonzero(mask[line * fold] == 0).squeeze(-1).tolist():
                token, position = self.kv.keys[0, page, 0, :, offset].tolist()
                found.append((int(token), int(position)))
        return found


def numbers(places: torch.Tensor | slice) -> list[int]:
    return [*range(places.start, places.stop)] if isinstance(places, slice) else places.tolist()


@st.composite
def batches(draw) -> list[tuple[int, int, Tree]]:
    """Draw (cached, new, tree) of a few sequences."""
    return [
        (draw(st.integers(0, 40)), draw(st.integers(1, 40)), draw(trees(12)) if draw(st.booleans()) else Tree())
        for _ in range(draw(st.integers(1, 4)))
    ]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(batches(), st.sampled_from([None, 5, 100]))
def test_every_row_sees_its_own_past_in_order_and_nothing_else(batch, window):
    runner = fakes.runner(TINY, pages=96)
    works = []
    for i, (cached, new, drafts) in enumerate(batch):
        state = fakes.cached([(i * 20 + j) % VOCAB for j in range(cached + new)])
        works.append(fakes.work(state, cached, drafts=drafts))
        assert runner.try_reserve(works[-1])
    spelled = Spelled(works, runner)
    row = 0
    for work in works:
        chains = [work.sequence.tokens[: end + 1] for end in range(work.start, len(work.sequence.tokens))]
        chains += [
            [*work.sequence.tokens, *(work.tree.tokens[n - 1] for n in path_to(work.tree, node))]
            for node in range(1, len(work.tree) + 1)
        ]
        for chain in chains:
            expected = list(zip(chain, range(len(chain)), strict=True))
            assert spelled.seen(row, window) == expected[0 if window is None else -window :]
            row += 1
    assert row == len(spelled.plan.ids)
