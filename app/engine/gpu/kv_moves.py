"""Collect accepted paths of trees, which the next step moves before it reads them."""

from array import array
from typing import Final

from app.engine.gpu.input_batch import Arrays, Move, moved_pages
from app.engine.gpu.layers import Pages
from kernels.attention.kv_commit import kv_commit


class KVMoves:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._page_tokens = pages.keys.shape[2]
        self._table = moved_pages(self._page_tokens)
        self.waiting: Final[list[Move]] = []

    def add(self, pages: "array[int]", below: int, path: list[int]) -> None:
        """Add the path, root's child first, of a tree whose node i was written to slot below + i."""
        if path != list(range(len(path))):
            first = below // self._page_tokens
            self.waiting.append(Move(pages[first : first + self._table], below % self._page_tokens, path))

    def launch(self, arrays: Arrays) -> None:
        if self.waiting:
            self._launch(arrays, len(self.waiting))
            self.waiting.clear()

    def rehearse(self, arrays: Arrays) -> None:
        self._launch(arrays, 1)

    def _launch(self, arrays: Arrays, count: int) -> None:
        names = ("move_blocks", "move_below", "move_path", "move_length")
        kv_commit(self._pages.keys, self._pages.values, *(arrays.device[name][:count] for name in names))
