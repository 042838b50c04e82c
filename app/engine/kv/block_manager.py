"""Reserve, release and share the KV pages of a runner's sequences.

Goes in: sequences and batch entries; comes out: their page lists and how much of each is cached.
Knows no tensors, no model and no device.
"""

from app.engine.kv.pages import PagePool
from app.engine.kv.prefix_hash import names
from app.state import BatchEntry, CachedSequence


class PagedRunner:
    """The host's side of a paged KV cache, the same on every device."""

    def __init__(self, pool: PagePool, *, shares: bool) -> None:
        """Manage the pages of `pool`.

        `shares`: sequences that begin alike use each other's pages. That is right only if what is
        cached is never taken back, so not for drafters, whose guesses are.
        """
        self.pool = pool
        self._shares = shares

    @property
    def capacity_tokens(self) -> int:
        """Return the tokens of the longest sequence, with its tree, that fits alone."""
        return self.pool.num_pages * self.pool.page_tokens

    @property
    def free_tokens(self) -> int:
        """Return the tokens of the pages that no sequence holds; some pages may still be named, and
        so be shared later."""
        return self.pool.num_free * self.pool.page_tokens

    def adopt(self, sequence: CachedSequence) -> int:
        """Give the sequence the named pages of others that begin like it; return the tokens that
        need no computing.

        At least its last token is left to be computed. Nothing happens once it has a page that is
        not full.
        """
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
        """Give the sequence's pages back; its prefix must be computed again if it goes on."""
        self.pool.release(sequence.pages)
        sequence.cached = sequence.named = 0

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        """Count the first `tokens` of the sequence as cached: rows were computed, or are taken
        back. Its pages stay."""
        sequence.cached = tokens

    def drop(self, work: BatchEntry) -> None:
        """Release the pages of the tree's forks. The sequence's cache stays as far as it was before
        the batch entry."""
        for fork in work.forks:
            self.pool.release(fork.pages)

    def invalidate(self, work: BatchEntry) -> None:
        """Release the pages of a failed batch entry's sequence and forks, and set them to zero.

        A NaN left in a page would spoil the sums of the next sequence that holds it, masked or not.
        """
        for pages in (work.sequence.pages, *(fork.pages for fork in work.forks)):
            self.pool.unname(pages)
            self._clear([page for page in pages if not self.pool.is_shared(page)])
        self.drop(work)
        self.release(work.sequence)

    def _keep(self, work: BatchEntry, cached: int) -> None:
        """Set the cache to cover `cached` of the sequence's tokens, and name its full pages so that
        others find them."""
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

    def _note_trim(self, sequence: CachedSequence) -> None:
        """Note that the sequence's last pages were taken from it. Nothing here keeps them elsewhere."""

    def _clear(self, pages: list[int]) -> None:
        """Set pages of all layers to zero."""
        raise NotImplementedError
