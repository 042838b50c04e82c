"""Turn a packed batch into the arrays of `kernels.cpu.chain`."""

import numpy as np

from app.engine.packing import PackedBatch
from kernels.cpu.attention import SPLIT
from kernels.cpu.chain import Chain
from kernels.cpu.shapes import Step


def chain_of(plan: PackedBatch, depth: int, floor: float, head_ids: np.ndarray, absent: np.ndarray | None) -> Chain:
    """The plan holds pages for all but the last of `depth` guesses.

    floor: drafting ends below this product of confidences. head_ids: (Vh,) int64, empty: all. absent: (B, hidden)
    float32, added to the embeddings of guesses.
    """
    batch = len(plan.spans)
    rows = np.arange(batch)
    positions = np.array([span.position + len(span.rows) for span in plan.spans], np.int64)
    sizes = [len(span.pages) for span in plan.spans]
    first_page = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    tiles = np.zeros((batch, 6), np.int64)
    tiles[:, 0], tiles[:, 1], tiles[:, 3] = rows, 1, first_page
    step = Step(
        ids=np.zeros(batch, np.int64),
        positions=positions,
        own=np.zeros((batch, 2), np.int64),
        copies=np.zeros((0, 2), np.int64),
        forked=np.zeros((0, 3), np.int64),
        tile_rows=rows,
        tiles=tiles,
        pages=np.concatenate([span.pages for span in plan.spans], dtype=np.int64),
        units=np.zeros((int((-(-(positions + depth) // SPLIT)).sum()), 3), np.int64),
        wanted=rows,
        added=0 if absent is None else absent.ctypes.data,
    )
    return Chain(
        depth=depth,
        floor=floor,
        page_tokens=plan.kv.page_tokens,
        head_ids=head_ids,
        first_page=first_page,
        step=step,
        num_units=np.zeros(1, np.int64),
        survival=np.ones(batch, np.float32),
        guesses=np.zeros((depth, batch, 2), np.int64),
        chances=np.zeros((depth, batch, 2), np.float32),
        steps=np.zeros(1, np.int64),
    )
