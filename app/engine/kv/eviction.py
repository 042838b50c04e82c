"""Evict the KV page that has been idle longest.

An idle page has a name, for sequences with the same prefix, and no holder.
"""

from collections import OrderedDict


class IdlePages:
    def __init__(self) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, page: int) -> None:
        self._pages[page] = None

    def remove(self, page: int) -> None:
        self._pages.pop(page, None)

    def evict(self) -> int:
        page, _ = self._pages.popitem(last=False)
        return page
