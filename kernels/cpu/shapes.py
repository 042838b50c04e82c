"""Declare a forward's inputs as tuples that numba reads: weights, one step's rows, working memory."""

from typing import NamedTuple

from kernels.cpu.by_address import Ints1, Ints2

# A layer's slots in `Model.layers`. A weight has three: the address of its kind's kernel, its
# own, and the form of rows that the kernel takes (`kernels.cpu.products.row_blocks`).
NORM1, Q_NORM, K_NORM, NORM2, WINDOW = range(5)
Q, K, V, OUT, GATE_UP, DOWN = range(5, 23, 3)
WEIGHTS = (Q, K, V, OUT, GATE_UP, DOWN)
QKV_BIAS, OUT_BIAS, DOWN_BIAS = range(23, 26)
ARRAYS = (NORM1, Q_NORM, K_NORM, NORM2, QKV_BIAS, OUT_BIAS, DOWN_BIAS)
NUM_SLOTS = 26

# A layer's counted parts: each has a counter from which threads take its pieces.
ON_QKV, ON_PLACE, ON_FORK, ON_FORKED, ON_MIX, ON_JOIN, ON_OUT, ON_UPDATE, ON_GATE, ON_DOWN, ON_NEXT = range(11)
ON_BLOCKS = 11  # where a part of a pass begins
PARTS = 12  # what comes before and after the layers has some counters of its own


class Model(NamedTuple):
    """Weights as addresses of packed arrays (0: none), each with its kernel's address
    (`kernels.cpu.products.linear.LINEAR`).

    The code that fills it owns the arrays.
    """

    num_layers: int
    hidden: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    inner: int  # columns of the gate
    vocab: int
    page_tokens: int
    epsilon: float
    scale: float  # of the scores
    layers: Ints2  # (L, NUM_SLOTS), addresses and the window
    attention_kernel: int  # the address of `kernels.cpu.attention.ATTEND`, or of ATTEND_F16
    embedding_kernel: int  # that reads a row (`kernels.cpu.products.embedding.ROW`)
    embedding: int  # (V, hidden), packed; the head's address where they are one
    final_norm: int
    head_kernel: int
    head: int
    head_form: int  # of the rows that its kernel takes
    row_form: int  # of the blocks that some kernels take; DENSE: none does
    head_bias: int
    cos: int  # (positions, D)
    sin: int
    keys: int  # (L, P, HK, S / 16, D, 16)
    values: int  # (L, P, HK, D / 16, S, 16)
    num_pages: int
    kv_item: int  # bytes of each number of keys and values


class Step(NamedTuple):
    """A step's rows and pages. Rows of one chain at consecutive positions form tiles."""

    ids: Ints1  # (T,)
    positions: Ints1  # (T,)
    own: Ints2  # (T, 2) page and offset of each row, -1 for those that stand in forks only
    copies: Ints2  # (C, 2) pages, to and from, once the own rows are written
    forked: Ints2  # (F, 3) row, page, offset, once the pages are copied
    tile_rows: Ints1  # the tiles' rows, tile after tile
    tiles: Ints2  # (NT, 6) first in tile_rows, rows, position, first in pages, first unit, splits
    pages: Ints1  # the tiles' pages, tile after tile
    units: Ints2  # (NU, 3) tile, split, first line of its sums
    wanted: Ints1  # (N,) rows whose logits are wanted
    added: int  # address of (T, hidden) float32, added to the rows' embeddings; 0: nothing


class Room(NamedTuple):
    """Addresses of a step's working memory, float32."""

    threads: int
    words: int  # in which the team of threads meets
    hidden: int  # (T, hidden)
    normed: int  # (T, hidden)
    mixed: int  # (T, columns of q, k and v)
    attended: int  # (T, H * D)
    gated: int  # (T, inner)
    update: int  # (T, hidden)
    blocks: int  # rows in blocks, of what the next product reads
    gated_blocks: int  # the same of `gated`
    sums: int  # (lines * H, D)
    stats: int  # (lines * H, 2)
    queries: int  # per thread (TILE * fold, D)
    queries_bytes: int
    scores: int  # per thread (TILE * fold, SPLIT), and two blocks of gate and up
    scores_bytes: int
    logits: int  # (N, columns of the head)
    best: Ints1  # (N,), where each wanted row's largest logit stands; -1: not finite
