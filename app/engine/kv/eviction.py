"""Evict KV pages: the one idle for longest goes first.

A page is idle while it is named, and no sequence holds it.
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
