"""Collect accepted paths of trees, and move all of a step's in one launch before the next step
reads them.
"""

from array import array

import torch

from app.engine.gpu.input_batch import Arrays
from app.engine.gpu.layers import Pages
from kernels.attention.kv_commit import kv_commit
from kernels.attention.ragged_attention import MAX_TREE_ROWS


class KVMoves:
    """Moves of accepted nodes to the slots right behind their sequence's prefix.

    The pages are remembered as they were: a sequence that gets them afterwards writes to them in a
    later launch.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._page_tokens = pages.keys.shape[2]
        self._table = (MAX_TREE_ROWS + self._page_tokens - 1) // self._page_tokens + 1
        self._waiting: list[tuple[array[int], int, list[int]]] = []  # pages, slot of the first node in them, path

    def add(self, pages: "array[int]", below: int, path: list[int]) -> None:
        """Add the path of a tree whose node i was written to slot below + i.

        path: the accepted nodes, root's child first.
        """
        if path != list(range(len(path))):
            first = below // self._page_tokens
            self._waiting.append((pages[first : first + self._table], below % self._page_tokens, path))

    def launch(self) -> None:
        """Launch all moves that wait."""
        if not self._waiting:
            return
        count = len(self._waiting)
        arrays = self._arrays(count)
        host = arrays.turn()
        for i, (pages, below, path) in enumerate(self._waiting):
            host["blocks"][i, : len(pages)] = pages
            host["below"][i] = below
            host["path"][i, : len(path)] = path
            host["length"][i] = len(path)
        arrays.send(count)
        self._move(arrays)
        self._waiting = []

    def rehearse(self) -> None:
        """Launch a move of nothing."""
        self._move(self._arrays(1))

    def _arrays(self, count: int) -> Arrays:
        ints = torch.int32
        fields = {
            "below": (ints, (count,)), "length": (ints, (count,)), "path": (ints, (count, MAX_TREE_ROWS)),
            "blocks": (ints, (count, self._table)),
        }  # fmt: skip
        return Arrays(fields, self._pages.keys.device)

    def _move(self, arrays: Arrays) -> None:
        d = arrays.device
        kv_commit(self._pages.keys, self._pages.values, d["blocks"], d["below"], d["path"], d["length"])
