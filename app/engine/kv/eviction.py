"""Evict KV pages: the one idle for longest goes first.

A page is idle while it is named, so that a sequence with the same beginning may find it, and held by no sequence.
"""

from collections import OrderedDict


class IdlePages:
    """The idle pages of a pool, in the order in which they became idle."""

    def __init__(self) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, page: int) -> None:
        """Add a page that has just become idle."""
        self._pages[page] = None

    def remove(self, page: int) -> None:
        """Remove a page that a sequence holds again; do nothing for one that is not idle."""
        self._pages.pop(page, None)

    def evict(self) -> int:
        """Remove and return the page idle for longest."""
        page, _ = self._pages.popitem(last=False)
        return page
