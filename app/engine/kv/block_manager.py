"""Which pages a runner's sequences hold: kept, given back, and shared by those that begin alike. No tensors."""

from app.engine.kv.pages import PagePool
from app.engine.kv.prefix_hash import names
from app.state import BatchEntry, CachedSequence


class PagedRunner:
    """The host's side of a paged KV cache, the same on every device."""

    def __init__(self, pool: PagePool, *, shares: bool) -> None:
        """`shares`: may sequences that begin alike use each other's pages? Only if what is cached is never taken back,
        so not for drafters, whose guesses are."""
        self.pool = pool
        self._shares = shares

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence, with its tree, that fits alone."""
        return self.pool.num_pages * self.pool.page_tokens

    @property
    def free_tokens(self) -> int:
        """Of them, those that no sequence holds; some may still hold a beginning that others can share."""
        return self.pool.num_free * self.pool.page_tokens

    def adopt(self, sequence: CachedSequence) -> int:
        """Give the sequence the pages of others that begin like it, instead of computing them; the tokens spared.

        At least its last token is left to be computed. Nothing happens once it has a page that is not full.
        """
        size, pages = self.pool.page_tokens, sequence.pages
        most = (len(sequence.tokens) - 1) // size
        if not self._shares or sequence.cached != len(pages) * size or most <= len(pages):
            return 0
        found = self.pool.find(names(sequence, most, size)[len(pages) :])
        self.pool.hold(found)
        pages += found
        sequence.cached += len(found) * size
        return len(found) * size

    def release(self, sequence: CachedSequence) -> None:
        """Give the sequence's pages back; its prefix must be computed again if it goes on."""
        self.pool.release(sequence.pages)
        sequence.cached = 0

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count the first `tokens` of the sequence as cached: rows were computed, or are taken back. Its pages stay."""
        sequence.cached = tokens

    def drop(self, work: BatchEntry) -> None:
        """Give the tree's forks up. The sequence's cache stays as far as it was before the work."""
        for fork in work.forks:
            self.pool.release(fork.pages)

    def invalidate(self, work: BatchEntry) -> None:
        """Give a failed work's sequence and forks up, and leave nothing in their pages: what is not a number there
        would be none in the sums of whoever gets them next, masked or not."""
        for pages in (work.sequence.pages, *(fork.pages for fork in work.forks)):
            self.pool.unname(pages)
            self._clear([page for page in pages if not self.pool.is_shared(page)])
        self.drop(work)
        self.release(work.sequence)

    def _keep(self, work: BatchEntry, cached: int) -> None:
        """The cache now covers `cached` of the sequence's tokens; others may use its full pages."""
        sequence, size = work.sequence, self.pool.page_tokens
        sequence.cached = cached
        self.pool.trim(sequence.pages, cached)
        self.drop(work)
        if self._shares:
            full = min(cached, len(sequence.tokens)) // size
            for page, name in zip(sequence.pages, names(sequence, full, size), strict=False):
                self.pool.name(page, name)

    def _clear(self, pages: list[int]) -> None:
        """Set pages of all layers to zero."""
        raise NotImplementedError
