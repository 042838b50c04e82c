"""A tree as it comes in from whoever fused it: mail, so looked at before it is believed."""

from math import isfinite

from app.messages import TreeMessage
from app.state import Tree

MAX_NODES = 63


def tree_of(message: TreeMessage, vocab_size: int) -> Tree | None:
    """The tree of a message; None if it is not sound."""
    m = message
    if not _is_sound(m, vocab_size):
        return None
    return Tree([*m.tokens], [*m.parents], [*m.survival], [*m.proposers], m.confidence, m.skipped)


def _is_sound(message: TreeMessage, vocab_size: int) -> bool:
    size = len(message.tokens)
    return (
        size == len(message.parents) == len(message.survival) == len(message.proposers) <= MAX_NODES
        and all(token in range(vocab_size) for token in message.tokens)
        and all(parent in range(i + 1) for i, parent in enumerate(message.parents))
        and all(isfinite(value) for value in message.survival)
        and all(message.proposers)
    )
