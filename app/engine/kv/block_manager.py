"""Reserve, release and share the KV pages of a runner's sequences."""

from app.engine.kv.pages import PagePool
from app.engine.kv.prefix_hash import names
from app.state import BatchEntry, CachedSequence


class PagedRunner:
    """Implement the page methods of `app.engine.target.Target` on the host, for every device."""

    def __init__(self, pool: PagePool, *, shares: bool) -> None:
        """`shares`: sequences share prefix pages, so cached tokens must never be taken back."""
        self.pool = pool
        self._shares = shares

    @property
    def capacity_tokens(self) -> int:
        return self.pool.num_pages * self.pool.page_tokens

    @property
    def free_tokens(self) -> int:
        return self.pool.num_free * self.pool.page_tokens

    def adopt(self, sequence: CachedSequence) -> int:
        size, pages = self.pool.page_tokens, sequence.pages
        if not self._shares or sequence.cached != len(pages) * size:
            return 0
        most = (len(sequence.tokens) - 1) // size
        if most <= len(pages):
            return 0
        found = self.pool.find(names(sequence, len(pages), most, size))
        self.pool.hold(found)
        if sequence.named == len(pages):
            sequence.named += len(found)
        pages.extend(found)
        sequence.cached += len(found) * size
        return len(found) * size

    def release(self, sequence: CachedSequence) -> None:
        self.pool.release(sequence.pages)
        sequence.cached = sequence.named = 0

    def fork(self, sequence: CachedSequence, tokens: list[int]) -> CachedSequence | None:
        """Return a sequence of these tokens, with what is cached of those before the last; None without room.

        Whole pages are shared, so neither may take back a cached token of the other's while both live.
        """
        cached, size = min(sequence.cached, len(tokens) - 1), self.pool.page_tokens
        whole = cached // size
        found = CachedSequence(sequence.id, tokens, sequence.sampling, sequence.tenant, cached=cached)
        if not self.pool.try_grow(found.pages, cached % size):
            return None
        for page in found.pages:
            self._copy(page, sequence.pages[whole])
        self.pool.hold(sequence.pages[:whole])
        found.pages[:0] = sequence.pages[:whole]
        return found

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        sequence.cached = tokens

    def drop(self, work: BatchEntry) -> None:
        for fork in work.forks:
            self.pool.release(fork.pages)

    def invalidate(self, work: BatchEntry) -> None:
        """Zero the pages: a NaN would spoil the next holder's sums."""
        for pages in (work.sequence.pages, *(fork.pages for fork in work.forks)):
            self.pool.unname(pages)
            self._clear([page for page in pages if not self.pool.is_shared(page)])
        self.drop(work)
        self.release(work.sequence)

    def _keep(self, work: BatchEntry, cached: int) -> None:
        sequence, size = work.sequence, self.pool.page_tokens
        sequence.cached = cached
        if self.pool.trim(sequence.pages, cached):
            self._note_trim(sequence)
        self.drop(work)
        if self._shares:
            first, full = sequence.named, min(cached, len(sequence.tokens)) // size
            if full == first:
                return
            for page, name in zip(sequence.pages[first:full], names(sequence, first, full, size), strict=True):
                self.pool.name(page, name)
            sequence.named = full

    def _note_trim(self, sequence: CachedSequence) -> None: ...

    def _copy(self, to: int, of: int) -> None:
        raise NotImplementedError

    def _clear(self, pages: list[int]) -> None:
        raise NotImplementedError
