"""Turn a packed batch into the arrays of `kernels.cpu.chain`."""

from collections.abc import Sequence as Listed

import numpy as np

from app.engine.packing import PackedBatch
from kernels.cpu.attention import count_splits
from kernels.cpu.chain import Chain
from kernels.cpu.decoder import DECODE
from kernels.cpu.shapes import Step
from kernels.sampling.gumbel_noise import MASK
from kernels.sampling.parameters import limits_of
from kernels.sampling.target_token import Choice

NO_LIMIT = 2**31  # tokens: more than any vocabulary has


def chain_of(
    plan: PackedBatch,
    depth: int,
    floor: float,
    head_ids: np.ndarray,
    absent: np.ndarray | None,
    choices: Listed[Choice],
) -> Chain:
    """The plan holds pages for all but the last of `depth` guesses. The caller adds the logits.

    floor: drafting ends below this product of confidences. head_ids: (Vh,) int64, empty: all. absent: (B, hidden)
    float32, added to the embeddings of guesses. choices: of each sequence.
    """
    batch = len(plan.spans)
    limits = [limits_of(choice, NO_LIMIT) for choice in choices]
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
        units=np.zeros((sum(count_splits(position + depth) for position in positions.tolist()), 3), np.int64),
        wanted=rows,
        added=0 if absent is None else absent.ctypes.data,
    )
    return Chain(
        decode=DECODE.address,
        depth=depth,
        floor=floor,
        page_tokens=plan.kv.page_tokens,
        head_ids=head_ids,
        first_page=first_page,
        first_position=positions.copy(),
        step=step,
        num_units=np.zeros(1, np.int64),
        survival=np.ones(batch, np.float32),
        guesses=np.zeros((depth, batch, 2), np.int64),
        chances=np.zeros((depth, batch, 2), np.float32),
        steps=np.zeros(1, np.int64),
        logits=np.zeros((0, 0), np.float32),
        limits=np.array([(own.temperature, own.top_p, own.log_min_p) for own in limits], np.float64),
        top_k=np.array([own.top_k for own in limits], np.int64),
        noise=np.array([(own.seed & MASK, own.seed >> 32 & MASK, own.choice & MASK) for own in limits], np.uint32),
    )
