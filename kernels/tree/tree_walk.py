"""Walk each draft tree along the target's own tokens, all trees of a batch at once:
`app.stages.verify` on the device.

    node 0;  token = target[node];  child = the first node below `node` that holds `token`

until there is no child or the token ends the text: that token is the bonus, the nodes walked are
the path. The target's token in every node's row must be there beforehand, so penalties must have
been applied along each node's own ancestors.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.compile import CompileCase

# mypy: allow-untyped-defs, allow-incomplete-defs
# (a kernel's arguments get their types from each launch; the functions around it are typed)

MAX_NODES = 63  # and the root


@dataclass(frozen=True, slots=True)
class Walks:
    """The verdict on each tree."""

    paths: torch.Tensor  # (B, K) int32, accepted nodes from 1, root to leaf; zeros behind the last
    accepted: torch.Tensor  # (B,) int32, nodes on the path
    bonus: torch.Tensor  # (B,) int32, the target's own token after the last accepted one


def tree_walk_reference(
    tokens: torch.Tensor,  # (B, K) int32, node i is column i - 1
    parents: torch.Tensor,  # (B, K) int32, of node i, below i
    sizes: torch.Tensor,  # (B,) int32, nodes of each tree; columns from there on are never read
    target: torch.Tensor,  # (B, K + 1) int32, the target's token after each node
    ends: torch.Tensor,  # (B, E) int32, tokens that end the text, padded with negative numbers; E may be 0
) -> Walks:
    """Walk tree by tree in Python: the specification."""
    B, K = tokens.shape
    walks = Walks(*(torch.zeros(shape, dtype=torch.int32) for shape in ((B, K), (B,), (B,))))
    for tree in range(B):
        node, length = 0, 0
        while True:
            token = int(target[tree, node])
            below = [
                i + 1
                for i in range(int(sizes[tree]))
                if int(parents[tree, i]) == node and int(tokens[tree, i]) == token
            ]
            if not below or token in ends[tree].tolist():
                break
            node = walks.paths[tree, length] = below[0]
            length += 1
        walks.accepted[tree], walks.bonus[tree] = length, token
    return walks


@triton.jit
def _tree_walk_kernel(
    tokens_ptr,  # (B, K) int32
    parents_ptr,  # (B, K) int32
    sizes_ptr,  # (B,) int32
    target_ptr,  # (B, K + 1) int32
    ends_ptr,  # (B, E) int32
    paths_ptr,  # (B, K) int32
    accepted_ptr,  # (B,) int32
    bonus_ptr,  # (B,) int32
    K,
    E,
    BLOCK: tl.constexpr,  # power of two >= K
    BLOCK_E: tl.constexpr,  # power of two >= E
):
    """Walk one tree, held in registers, one step a node of the path. Grid (B,)."""
    tree = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    inside = lane < tl.load(sizes_ptr + tree)
    tokens = tl.load(tokens_ptr + tree * K + lane, mask=inside, other=-1)
    parents = tl.load(parents_ptr + tree * K + lane, mask=inside, other=-1)  # -1: the child of no node
    end = tl.arange(0, BLOCK_E)
    ends = tl.load(ends_ptr + tree * E + end, mask=end < E, other=-1)
    path = tl.zeros([BLOCK], tl.int32)
    length = 0
    node = 0
    token = tl.load(target_ptr + tree * (K + 1))
    walking = True
    while walking:
        below = tl.min(tl.where((parents == node) & (tokens == token), lane + 1, K + 1), 0)
        is_end = tl.sum((ends == token).to(tl.int32), 0) > 0
        walking = (below <= K) & ~is_end  # it ends: a node has one parent, so none is met twice
        if walking:
            path = tl.where(lane == length, below, path)
            length += 1
            node = below
            token = tl.load(target_ptr + tree * (K + 1) + node)
    tl.store(paths_ptr + tree * K + lane, path, mask=lane < K)
    tl.store(accepted_ptr + tree, length)
    tl.store(bonus_ptr + tree, token)


def tree_walk(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    sizes: torch.Tensor,
    target: torch.Tensor,
    ends: torch.Tensor,
) -> Walks:
    """Walk all trees in one launch; arguments and result as the reference's."""
    B, K = tokens.shape
    assert parents.shape == (B, K) and sizes.shape == (B,) and target.shape == (B, K + 1) and len(ends) == B
    assert 0 < K <= MAX_NODES
    for x in (tokens, parents, sizes, target, ends):
        assert x.dtype == torch.int32 and x.is_contiguous()
    walks = Walks(*(tokens.new_empty(shape) for shape in ((B, K), (B,), (B,))))
    num_ends = ends.shape[1]
    _tree_walk_kernel[(B,)](
        tokens, parents, sizes, target, ends, walks.paths, walks.accepted, walks.bonus, K, num_ends,
        BLOCK=triton.next_power_of_2(K), BLOCK_E=triton.next_power_of_2(max(1, num_ends)), num_warps=1,
    )  # fmt: skip
    return walks


def compile_cases() -> Iterator[CompileCase]:
    """Yield the cases that `kernels.compile` compiles without a GPU."""
    nodes, target, ends, sizes = (
        torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((8, 63), (8, 64), (8, 3), (8,))
    )
    yield CompileCase("63 nodes", lambda: tree_walk(nodes, nodes, sizes, target, ends), reads_rows=False)
