"""Hold the paged KV cache: page numbers, and the tensors behind them."""

import heapq
from array import array
from collections.abc import Iterable
from itertools import takewhile

import numpy as np
import torch

from app.config import KVDtype
from app.engine.kv.eviction import IdlePages


class PagePool:
    """Lend page numbers, lowest first: pages in use lie close together, and attention need not copy them.

    A full page may get a name: sequences with the same prefix hold it, and it is never written again. Idle, it stays
    until evicted.
    """

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self._free = list(range(num_pages))
        self._holders = [0] * num_pages
        self._names: dict[int, bytes] = {}
        self._named: dict[bytes, int] = {}
        self._idle = IdlePages()

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._idle)

    def try_grow(self, pages: "array[int]", tokens: int) -> bool:
        """Extend `pages` in place until they hold `tokens`: all or none."""
        missing = -(-tokens // self.page_tokens) - len(pages)
        if missing <= 0:
            return True
        if missing > self.num_free:
            return False
        pages.extend(self._lend() for _ in range(missing))
        return True

    def release(self, pages: "array[int]") -> None:
        self.trim(pages, 0)

    def trim(self, pages: "array[int]", tokens: int) -> "array[int]":
        """Remove pages beyond `tokens` tokens, the last first."""
        keep = -(-tokens // self.page_tokens)
        taken = pages[keep:]
        for page in reversed(taken):
            self._holders[page] -= 1
            if self._holders[page] == 0 and page in self._names:
                self._idle.add(page)
            elif self._holders[page] == 0:
                heapq.heappush(self._free, page)
        del pages[keep:]
        return taken

    def is_shared(self, page: int) -> bool:
        return self._holders[page] > 1

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Stop at the first unknown name. Only `hold` keeps the pages from being lent."""
        return [self._named[name] for name in takewhile(self._named.__contains__, names)]

    def hold(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._holders[page] += 1
            self._idle.remove(page)

    def name(self, page: int, name: bytes) -> None:
        """Name a full, final page, unless name or page is taken."""
        if name not in self._named and page not in self._names:
            self._names[page], self._named[name] = name, page

    def unname(self, pages: Iterable[int]) -> None:
        for page in pages:
            name = self._names.pop(page, None)
            if name is not None:
                del self._named[name]

    def _lend(self) -> int:
        if self._free:
            page = heapq.heappop(self._free)
        else:
            page = self._idle.evict()
            self.unname([page])
        self._holders[page] = 1
        return page


class KVCache:
    """Keys (L, P, HK, D, S), transposed as the products read them, and values (L, P, HK, S, D).

    The compiled forward has an order of its own in each page (`kernels.cpu.attention`).
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        num_key_heads: int,
        head_dim: int,
        page_tokens: int,
        dtype: KVDtype = "float32",
    ) -> None:
        self.page_tokens = page_tokens
        # numpy leaves the memory to the system until a page is used; torch would write all of it at once.
        shape = (num_layers, num_pages, num_key_heads)
        self.keys = torch.from_numpy(np.zeros((*shape, head_dim, page_tokens), dtype))
        self.values = torch.from_numpy(np.zeros((*shape, page_tokens, head_dim), dtype))

    def write(self, layer: int, pages: torch.Tensor, offsets: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v (T, HK, D) to slots of a layer: pages, offsets (T,) int64."""
        self.keys[layer][pages, :, :, offsets] = k
        self.values[layer][pages, :, offsets] = v

    def copy(self, layer: int, to: torch.Tensor, of: torch.Tensor) -> None:
        self.keys[layer][to] = self.keys[layer][of]
        self.values[layer][to] = self.values[layer][of]

    def copy_page(self, to: int, of: int) -> None:
        self.keys[:, to] = self.keys[:, of]
        self.values[:, to] = self.values[:, of]

    def clear(self, pages: list[int]) -> None:
        self.keys[:, pages] = 0.0
        self.values[:, pages] = 0.0


def bytes_per_page(
    num_layers: int, num_key_heads: int, head_dim: int, page_tokens: int, dtype: KVDtype = "float32"
) -> int:
    return 2 * np.dtype(dtype).itemsize * num_layers * num_key_heads * head_dim * page_tokens
