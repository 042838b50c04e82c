"""The paged KV cache: which pages a sequence holds, and the tensors behind them. Knows no model and no schedule."""

import heapq

import torch


class PagePool:
    """Hands out page numbers, the lowest first: pages in use lie close together, so attention need not gather."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self._free = list(range(num_pages))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def try_grow(self, pages: list[int], tokens: int) -> bool:
        """Extend `pages` in place until they hold `tokens`; False, and nothing changed, if the pool is too empty."""
        missing = -(-tokens // self.page_tokens) - len(pages)
        if missing > len(self._free):
            return False
        pages.extend(heapq.heappop(self._free) for _ in range(missing))
        return True

    def release(self, pages: list[int]) -> None:
        """Take all of `pages` back and empty the list."""
        for page in pages:
            heapq.heappush(self._free, page)
        pages.clear()

    def trim(self, pages: list[int], tokens: int) -> None:
        """Take back the pages beyond the first `tokens` tokens."""
        keep = -(-tokens // self.page_tokens)
        for page in pages[keep:]:
            heapq.heappush(self._free, page)
        del pages[keep:]


class KVCache:
    """Keys (L, P, HK, D, S) and values (L, P, HK, S, D) of all pages; keys lie transposed, as products want them."""

    def __init__(self, num_layers: int, num_pages: int, num_key_heads: int, head_dim: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.keys = torch.zeros(num_layers, num_pages, num_key_heads, head_dim, page_tokens)
        self.values = torch.zeros(num_layers, num_pages, num_key_heads, page_tokens, head_dim)

    def write(self, layer: int, pages: torch.Tensor, offsets: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """pages, offsets: (T,) int64; k, v: (T, HK, D)."""
        self.keys[layer][pages, :, :, offsets] = k
        self.values[layer][pages, :, offsets] = v

    def copy(self, layer: int, to: torch.Tensor, of: torch.Tensor) -> None:
        """Copy whole pages within a layer; to, of: (n,) int64."""
        self.keys[layer][to] = self.keys[layer][of]
        self.values[layer][to] = self.values[layer][of]

    def clear(self, pages: list[int]) -> None:
        """Set whole pages of all layers to zero."""
        self.keys[:, pages] = 0.0
        self.values[:, pages] = 0.0


def bytes_per_page(num_layers: int, num_key_heads: int, head_dim: int, page_tokens: int) -> int:
    """Memory of one page's keys and values, float32."""
    return 2 * 4 * num_layers * num_key_heads * head_dim * page_tokens
