"""Test the page table that stays on a device: what is sent to it, and that it is the host's."""

import random
from array import array
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this machine")
from app.engine.gpu.input_batch import (
    Arrays,
    Cut,
    RowLayout,
    fields,
    fill,
    layout_of,
    tier_size,
)
from app.engine.gpu.kv_moves import KVMoves
from app.engine.gpu.layers import Pages
from app.engine.gpu.page_table import PageTable, TabledRunner
from app.engine.kv.pages import PagePool
from app.state import BatchEntry, CachedSequence, Tree
from kernels.attention.ragged_attention import PREFILL, VERIFY
from tests import fakes

PAGE_TOKENS = 16
VOCAB = 64
LONGEST = 20_000
CPU = torch.device("cpu")
CUT = Cut(4, VERIFY, PREFILL)


class Runner(TabledRunner):
    """A runner that fills and sends the arrays of a tier, writes the page table, and computes nothing."""

    def __init__(self, *, pages: int, rows: int, tier: int = 64) -> None:
        super().__init__(PagePool(pages, PAGE_TOKENS), PageTable(rows, LONGEST, PAGE_TOKENS, VOCAB, CPU), shares=True)
        one_layer = torch.zeros(1, pages, PAGE_TOKENS, 1, 1)
        self.moves = KVMoves(Pages(one_layer, one_layer))
        self.tier = tier_size(tier, LONGEST, CUT)
        self.in_tier = self.arrays = Recorded(fields(self.tier, PAGE_TOKENS), CPU)

    def step(self, works: list[BatchEntry]) -> RowLayout:
        table = self.page_table
        layout = layout_of(works, CUT, table.update(works))
        size = layout.size(len(self.moves.waiting), len(table.changes))
        self.arrays = self.in_tier if self.tier.holds(size) else Recorded(fields(size, PAGE_TOKENS), CPU)
        fill(self.arrays, layout, table.host, PAGE_TOKENS, table.limits, table.changes, self.moves.waiting)
        table.launch(self.arrays)
        self.moves.waiting.clear()
        return layout

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        below = work.start + len(work.tokens)
        self.moves.add(work.sequence.pages, below, [node - 1 for node in path])
        self._keep(work, below + len(path))

    def _clear(self, pages: list[int]) -> None:
        pass


class Recorded(Arrays):
    """Arrays that note the bytes of each transfer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sent: list[int] = []

    def send(self, last: str, count: int) -> int:
        self.sent.append(super().send(last, count))
        return self.sent[-1]


def check(runner: Runner, layout: RowLayout) -> None:
    """Compare the device's table, and the slots that the rows were given, with the sequences' pages."""
    table = runner.page_table
    first = 0
    for work, row in zip(layout.works, layout.entries.table_rows, strict=True):
        pages = work.sequence.pages.tolist()
        assert table.device[row, : len(pages)].tolist() == table.host[row, : len(pages)].tolist() == pages
        slots = [pages[n // PAGE_TOKENS] * PAGE_TOKENS + n % PAGE_TOKENS for n in range(work.start, work_end(work))]
        assert runner.arrays.device["slots"][first : first + len(slots)].tolist() == slots
        first += len(slots)
    assert len(set(layout.entries.table_rows.tolist())) == len(layout.works)


def work_end(work: BatchEntry) -> int:
    return work.start + len(work.tokens) + len(work.tree)


def entry(runner: Runner, sequence: CachedSequence, drafts: Tree | None = None) -> BatchEntry | None:
    """Return an entry of what the sequence has not cached, its pages reserved; None without room."""
    work = fakes.work(sequence, sequence.cached, drafts=drafts)
    return work if runner.pool.try_grow(sequence.pages, work_end(work)) else None


def test_the_devices_table_is_the_hosts_after_anything() -> None:
    """Sequences come, share beginnings, grow, commit paths of trees, fail, are evicted, and come again."""
    draw = random.Random(1)
    runner = Runner(pages=90, rows=4, tier=512)
    beginning = [draw.randrange(VOCAB) for _ in range(50)]
    sequences = [CachedSequence(f"r{i}", []) for i in range(7)]  # more than rows: the table's, too, are taken back
    adopted = moved = failed = 0
    for _ in range(400):
        works: list[BatchEntry] = []
        for sequence in draw.sample(sequences, draw.randint(1, 4)):
            if not sequence.tokens or len(sequence.tokens) > 300 or draw.random() < 0.1:
                runner.release(sequence)
                sequence.tokens[:] = beginning[: draw.randint(1, 50)] + [draw.randrange(VOCAB)]
                adopted += runner.adopt(sequence)
            nodes = draw.randint(0, 5) if sequence.uncached < 60 else 0  # more rows than 64 have no tree
            tree = Tree([1] * nodes, [draw.randint(0, i) for i in range(nodes)], [1.0] * nodes, [()] * nodes)
            work = entry(runner, sequence, tree)
            if work is None:
                runner.release(draw.choice([s for s in sequences if all(s is not w.sequence for w in works)]))
            else:
                works.append(work)
        if not works:
            continue
        check(runner, runner.step(works))
        for work in works:
            if draw.random() < 0.05:
                runner.invalidate(work)
                failed += 1
                continue
            path = work.tree.path(draw.randint(0, len(work.tree)))
            moved += path != [*range(1, len(path) + 1)]
            runner.accept(work, path)
            work.sequence.tokens += [work.tree.tokens[node - 1] for node in path] + [draw.randrange(VOCAB)]
    assert min(adopted, moved, failed) > 20


class Counted(array):  # type: ignore[type-arg]
    """Page numbers that count how many of them are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.read += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize("count", [1, 8])
def test_a_steps_bytes_and_reads_do_not_grow_with_the_context(count: int) -> None:
    sent, read = {}, {}
    for context in (100, 16_000):
        runner = Runner(pages=count * LONGEST // PAGE_TOKENS, rows=count)
        sequences = [CachedSequence(f"r{i}", [1] * context, pages=Counted("i")) for i in range(count)]

        def step(runner: Runner = runner, sequences: list[CachedSequence] = sequences) -> None:
            for sequence in sequences:
                sequence.cached = len(sequence.tokens)
                sequence.tokens.append(1)
            runner.step([work for sequence in sequences if (work := entry(runner, sequence)) is not None])

        step()  # all pages are new to the table
        first = Counted.read
        for _ in range(3 * PAGE_TOKENS):
            step()
        sent[context], read[context] = runner.in_tier.sent[-3 * PAGE_TOKENS :], Counted.read - first
    assert sorted(sent[100]) == sorted(sent[16_000])
    assert len(set(sent[100])) == 2, "with new pages, and without"
    assert read[100] == read[16_000] == 3 * count, "the new pages"


def test_moves_are_sent_where_there_are_any_alone() -> None:
    runner = Runner(pages=8, rows=2, tier=8)
    sequence = CachedSequence("r", [1] * 20, cached=19)
    work = entry(runner, sequence, fakes.tree([1, 2], [0, 0]))
    assert work is not None
    runner.step([work])
    runner.accept(work, [2])
    sequence.tokens += [2, 3]
    for _ in range(2):
        work = entry(runner, sequence)
        assert work is not None
        runner.step([work])
    page_new, with_move, without = runner.arrays.sent
    moves = sum(array.nbytes for name, array in runner.arrays.device.items() if name.startswith("move_"))
    assert without < page_new < without + moves < with_move


def test_more_sequences_than_rows_are_refused_and_less_used_ones_lose_their_rows() -> None:
    runner = Runner(pages=8, rows=2)
    sequences = [CachedSequence(f"r{i}", [1]) for i in range(3)]
    works = [work for sequence in sequences if (work := entry(runner, sequence)) is not None]
    with pytest.raises(ValueError, match="3 sequences, on a page table of 2"):
        runner.step(works)
    for pair in ([0, 1], [1, 2], [0, 2], [2, 1]):
        check(runner, runner.step([works[i] for i in pair]))


def test_changes_of_a_step_that_failed_come_with_the_next() -> None:
    runner = Runner(pages=8, rows=2)
    sequence = CachedSequence("r", [1] * 20)
    work = entry(runner, sequence)
    assert work is not None
    layout = layout_of([work], CUT, runner.page_table.update([work]))
    assert not runner.page_table.device.any() and len(runner.page_table.changes) == 2
    check(runner, runner.step([work]))
    assert not runner.page_table.changes and layout.entries.table_rows.tolist() == [0]
