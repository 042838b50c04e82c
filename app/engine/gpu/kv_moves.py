"""Collect accepted paths of trees, and move all of a step's in one launch before the next step
reads them.
"""

from array import array

import numpy as np
import torch

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
        blocks = np.zeros((count, self._table), np.int32)
        paths = np.zeros((count, MAX_TREE_ROWS), np.int32)
        for i, (pages, _, path) in enumerate(self._waiting):
            blocks[i, : len(pages)] = pages
            paths[i, : len(path)] = path
        below = np.array([below for _, below, _ in self._waiting], np.int32)
        lengths = np.array([len(path) for _, _, path in self._waiting], np.int32)
        tensors = [torch.from_numpy(array).to(self._pages.keys.device) for array in (blocks, below, paths, lengths)]
        kv_commit(self._pages.keys, self._pages.values, *tensors)
        self._waiting = []
