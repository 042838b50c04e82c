from collections import Counter

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.engine.kv.pages import KVCache, PagePool, bytes_per_page

PAGES, SIZE = 12, 16
NAMES = st.sampled_from([bytes([i]) for i in range(5)])  # few, so that what is looked for is often known


class Pool(RuleBasedStateMachine):
    """Sequences that come, grow, share, shrink and go; no page is lost, lent twice, or found by
    another's name."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.held: list[list[int]] = []
        self.written: dict[int, bytes] = {}  # what a page was named for, until it is lent again

    @initialize(named=st.integers(0, 3))
    def begin(self, named: int) -> None:
        """Name some pages at the start: else few runs would come to share any."""
        self.come(3 * SIZE)
        for page in self.held[0][:named]:
            self.pool.name(page, name := bytes([page]))
            self.written[page] = name

    @rule(tokens=st.integers(1, 4 * SIZE))
    def come(self, tokens: int) -> None:
        self.held.append(pages := [])
        if self.pool.try_grow(pages, tokens):
            for page in pages:
                self.written.pop(page, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, (PAGES + 2) * SIZE))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        pages = data.draw(st.sampled_from(self.held))
        before, free = list(pages), self.pool.num_free
        could = self.pool.try_grow(pages, tokens)
        missing = max(0, -(-tokens // SIZE) - len(before))
        assert could == (missing <= free)
        assert pages[: len(before)] == before
        assert len(pages) == len(before) + (missing if could else 0)
        for page in pages[len(before) :]:
            self.written.pop(page, None)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), name=NAMES)
    def name(self, data: st.DataObject, name: bytes) -> None:
        page = data.draw(st.sampled_from(sorted({page for pages in self.held for page in pages})))
        self.pool.name(page, name)
        if self.pool.find([name]) == [page]:
            self.written[page] = name

    @precondition(lambda self: self.written)
    @rule(names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
    def share(self, names: list[bytes]) -> None:
        found = self.pool.find(names)
        assert [self.written.get(page) for page in found] == names[: len(found)]
        if len(found) < len(names):
            assert names[len(found)] not in self.pool._named
        self.pool.hold(found)
        self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unname(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.held))
        self.pool.unname(pages)
        assert not any(self.pool.find([self.written[page]]) == [page] for page in pages if page in self.written)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, PAGES * SIZE))
    def trim(self, data: st.DataObject, tokens: int) -> None:
        pages = data.draw(st.sampled_from(self.held))
        before = list(pages)
        self.pool.trim(pages, tokens)
        assert pages == before[: -(-tokens // SIZE)]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(pages)
        assert pages == []

    @invariant()
    def no_page_is_lost_or_lent_twice(self) -> None:
        holders = Counter(page for pages in self.held for page in pages)
        assert len(holders) == PAGES - self.pool.num_free
        assert all(self.pool._holders[page] == holders[page] for page in range(PAGES))
        assert all(self.pool.is_shared(page) == (holders[page] > 1) for page in range(PAGES))


Pool.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)
TestPagePool = Pool.TestCase


def test_naming_a_page_twice_keeps_first_owner():
    pool, pages = PagePool(2, SIZE), []
    pool.try_grow(pages, 2 * SIZE)
    for page in pages:
        pool.name(page, b"a")
    assert pool.find([b"a"]) == pages[:1]
    pool.name(pages[0], b"b")
    assert pool.find([b"b"]) == []


def test_the_longest_idle_page_goes_first_and_prefixes_stay():
    pool, pages = PagePool(3, SIZE), []
    pool.try_grow(pages, 3 * SIZE)
    for i, page in enumerate(pages):
        pool.name(page, bytes([i]))
    pool.release(pages)
    assert pool.num_free == 3
    other = []
    pool.try_grow(other, SIZE)
    assert len(pool.find([bytes([0]), bytes([1]), bytes([2])])) == 2, "the end was given up, not the beginning"


def test_the_lowest_free_pages_are_lent_first():
    pool, first, second, third = PagePool(8, SIZE), [], [], []
    pool.try_grow(first, 3 * SIZE)
    pool.try_grow(second, 2 * SIZE)
    pool.release(first)
    pool.try_grow(third, 4 * SIZE)
    assert (second, third) == ([3, 4], [0, 1, 2, 5])


def test_a_write_changes_its_page_and_offset_alone():
    cache = KVCache(2, 4, 3, 5, SIZE)
    k, v = torch.randn(2, 6, 3, 5, generator=torch.Generator().manual_seed(0))
    pages, offsets = torch.tensor([3, 0, 0, 1, 3, 2]), torch.tensor([15, 0, 7, 3, 2, 2])
    cache.write(1, pages, offsets, k, v)
    for i, (page, offset) in enumerate(zip(pages.tolist(), offsets.tolist(), strict=True)):
        assert torch.equal(cache.keys[1, page, :, :, offset], k[i])
        assert torch.equal(cache.values[1, page, :, offset], v[i])
    assert not cache.keys[0].any() and not cache.values[0].any()
    assert torch.count_nonzero(cache.keys).item() == torch.count_nonzero(cache.values).item() == 6 * 3 * 5


def test_a_copied_page_is_whole_and_of_one_layer():
    cache = KVCache(2, 4, 3, 5, SIZE)
    for tensor in (cache.keys, cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    keys, values = cache.keys.clone(), cache.values.clone()
    cache.copy(1, torch.tensor([0, 3]), torch.tensor([2, 1]))
    for now, before in ((cache.keys, keys), (cache.values, values)):
        assert torch.equal(now[1], before[1][[2, 1, 2, 1]])
        assert torch.equal(now[0], before[0])


def test_bytes_per_page_are_those_of_the_tensors():
    cache = KVCache(3, 7, 2, 8, SIZE)
    total = sum(tensor.numel() * tensor.element_size() for tensor in (cache.keys, cache.values))
    assert total == 7 * bytes_per_page(3, 2, 8, SIZE)
