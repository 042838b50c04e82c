"""Walk each tree along the target's tokens: batch entries and their logits in, verdicts out.

A draft token is right if it equals the target's at its place (design D1).
"""

from collections.abc import Sequence as Listed

from app.engine.history import TokenHistory
from app.engine.target import TargetRows
from app.errors import GenerationFailed
from app.request import Sampling, TokenLogprobs
from app.state import BatchEntry, Verdict

RAW = Sampling()


def verify(works: Listed[BatchEntry], logits: Listed[TargetRows | None]) -> list[Verdict | None]:
    """Return a verdict, None for a prompt chunk; of one whose tokens are scored the log-probabilities alone.

    `logits`: by entry, the rows of its last token and of its nodes, but none of nodes that left the pass early.
    """
    return [
        None if rows is None else _walk(work, rows) if work.scores is None else _score(work, rows, work.scores)
        for work, rows in zip(works, logits, strict=True)
    ]


def _score(work: BatchEntry, rows: TargetRows, top: int) -> Verdict:
    nodes = [*range(1 + len(work.tree))]
    tokens = work.sequence.tokens[work.start + 1 :]
    return Verdict(nodes[1:], [], [rows.logprobs(node, tokens[node], top, RAW, ()) for node in nodes])


def _walk(work: BatchEntry, rows: TargetRows) -> Verdict:
    sequence, tree = work.sequence, work.tree
    node = 0
    path: list[int] = []
    tokens: list[int] = []
    history = TokenHistory(sequence.tokens, tokens)
    logprobs: list[TokenLogprobs] = []
    position, sampling, wanted = len(sequence.tokens), sequence.sampling, sequence.logprobs
    pruned, eos_ids, mask_of, mask = work.pruned, work.eos_ids, work.mask, None
    while True:
        try:
            if mask_of is not None:
                mask = mask_of(history)
        except GenerationFailed as error:  # this request's alone: it must not end the others of the batch
            return Verdict(path, tokens, logprobs, error=str(error))
        token = rows.token(node, position, sampling, history, mask)
        if wanted is not None:
            logprobs.append(rows.logprobs(node, token, wanted, sampling, history, mask))
        tokens.append(token)
        position += 1
        child = tree.child(node, token)
        if child is None or child in pruned or token in eos_ids:
            cut = child if child in pruned and token not in eos_ids else None
            return Verdict(path, tokens, logprobs, rows.state(node), cut=cut)
        path.append(child)
        node = child
