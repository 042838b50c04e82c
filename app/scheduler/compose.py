"""Compose a verifier's next batch: pure functions of sequences, policy and time."""

from bisect import bisect_right
from collections.abc import Sequence as Listed
from collections.abc import Set
from itertools import accumulate
from operator import attrgetter

from app.engine.step_costs import StepCosts
from app.policy import Policy
from app.scheduler.prefill import beside_of, chunk_tokens, prompts_of, split_prefill
from app.scheduler.tree_budget import BatchRows, BatchSelection, PaceSelection
from app.state import NO_TREE, BatchEntry, Sequence, Tree

PACE = PaceSelection()
TAIL_TOKENS = 8  # a running sequence with no more than this uncached decodes; else it is refilled


def compose(
    sequences: Listed[Sequence],
    policy: Policy,
    now_s: float,
    costs: StepCosts,
    suspects: Set[str] = frozenset(),
    is_together: bool = True,
    selection: BatchSelection = PACE,
    drafts_here: bool = False,
) -> list[BatchEntry]:
    """Compose the next batch of at most `max_batch_tokens` rows, empty if all wait for trees.

    `sequences` and entries come oldest first. Running ones get their rows before prompts, for which a chunk or half of
    the step is kept free; trees get what is left. Suspects run alone, in turn with the others. With `is_together` the
    running sequences go in one batch, so while one waits only prompts are read, if anything; else the half that waited
    longest goes where all could. `now_s`: wall clock.
    """
    decoding = [s for s in sequences if _is_running(s)]  # those that wait for their trees, too
    going_on = [s for s in decoding if s.tree is not None or s.due_s <= now_s]
    prompts = [s for s in sequences if not _is_running(s)] if len(decoding) < len(sequences) else []
    if is_together and len(going_on) < len(decoding):
        going_on = []
        if prompts and not suspects and holds_prompts(decoding, prompts, policy, now_s, costs, drafts_here):
            return []
    ready = _suspects_apart(sorted(going_on + prompts, key=attrgetter("age")) if prompts else going_on, suspects)
    if prompts or len(ready) < len(going_on):  # not all that are ready decode, or may go on
        prompts, running = [s for s in ready if not _is_running(s)], [s for s in ready if _is_running(s)]
    else:
        running = ready
    size = chunk_tokens(costs, policy) if prompts else 0
    wanted = min(size, policy.max_batch_tokens // 2, sum(s.uncached for s in prompts))
    if not is_together and len(running) == len(decoding):
        running = _longest_waiting_half(running)
    rows = [s.uncached for s in running]
    fitting = bisect_right([*accumulate(rows)], policy.max_batch_tokens - wanted)  # as many of the first as fit
    running, rows = running[:fitting], rows[:fitting]
    cached = [s.kv.cached for s in running]
    base_rows = sum(rows)
    reading = costs.reading
    chunks: list[BatchEntry] = []
    if prompts:
        chunks = split_prefill(
            prompts, policy.max_batch_tokens - base_rows, size, costs, _plain_s(decoding, costs), beside_of(policy)
        )
    base_s, chunk_rows = reading.step_s(zip(cached, rows, strict=True)), 0
    if chunks:  # they take what they take, however many tokens the others commit
        chunk_rows = sum(len(work.tokens) for work in chunks)
        base_s += costs.seconds(base_rows) - costs.seconds(base_rows + chunk_rows)
        base_rows += chunk_rows
    trees = [NO_TREE] * len(running)
    if policy.max_draft_tokens:
        most = selection.most_nodes(len(running))
        trees = [_allowed_tree(s, most) for s in running]
    row_s = [tokens * reading.row_token_s for tokens in cached]
    batch = BatchRows(base_rows, policy.max_batch_tokens, chunk_rows, costs, base_s, row_s, not is_together)
    kept = selection.select(running, trees, batch)
    decodes = [
        s.entry(len(s.kv.tokens), tree.cut(nodes))
        for s, tree, nodes in zip(running, trees, kept, strict=True)
        if nodes is not None
    ]
    return decodes + chunks


def wait_s(
    sequences: Listed[Sequence],
    policy: Policy,
    now_s: float,
    costs: StepCosts,
    suspects: Set[str] = frozenset(),
    is_together: bool = True,
    drafts_here: bool = False,
) -> float | None:
    """Return the seconds until `compose` has a batch, as far as no mail changes that; None if there is no sequence."""
    if not sequences:
        return None
    waits = [0.0 if _is_ready(s, now_s) else s.due_s - now_s for s in sequences]
    if not is_together or not any(waits):
        return min(waits)
    decoding, prompts = [s for s in sequences if _is_running(s)], [s for s in sequences if not _is_running(s)]
    holds = not prompts or (not suspects and holds_prompts(decoding, prompts, policy, now_s, costs, drafts_here))
    return max(waits) if holds else 0.0


def holds_prompts(
    decoding: Listed[Sequence],
    prompts: Listed[Sequence],
    policy: Policy,
    now_s: float,
    costs: StepCosts,
    drafts_here: bool,
) -> bool:
    """Tell whether prompts wait for the trees that running sequences wait for, to go in one step with them:

        w + T(all + prompts) + e T(plain) / n <= max(w, T(prompts)) + T(all)

    w: seconds until the last tree is expected; beyond that time they wait on, until the trees are due. e: prompts that
    would be read to their end, and so have one token less in that time; n: running sequences.

    `drafts_here`: on the verifier's own cores, so that a step for prompts alone would only hold up the trees.
    """
    if drafts_here:
        return True
    late_s = max(s.expected_s for s in decoding if s.tree is None and s.due_s > now_s)
    trees_s, plain_s = max(0.0, late_s - now_s), _plain_s(decoding, costs)
    alone = prompts_of(prompts, policy, costs, plain_s)
    rows = sum(s.uncached + (s.asked if s.tree is None else len(s.tree.tokens)) for s in decoding)
    rows += min(alone.rows, sum(s.uncached for s in prompts) - alone.rows)  # a later step has prompts, too
    together_s = trees_s + costs.seconds(rows + alone.rows) + alone.ends * plain_s / len(decoding)
    return together_s <= max(trees_s, alone.seconds) + costs.seconds(rows)


def _last_s(sequence: Sequence) -> float:
    return sequence.last_token_s or sequence.record.created_s


def _is_running(sequence: Sequence) -> bool:
    """Tell whether a sequence decodes; else its prompt, or what preemption took, is to be read."""
    kv = sequence.kv
    length = len(kv.tokens)
    return length > len(sequence.record.prompt_ids) and length - kv.cached <= TAIL_TOKENS


def _is_ready(sequence: Sequence, now_s: float) -> bool:
    return sequence.tree is not None or sequence.due_s <= now_s or not _is_running(sequence)


def _suspects_apart(ready: list[Sequence], suspects: Set[str]) -> list[Sequence]:
    if not suspects or not ready:
        return ready
    first = min(ready, key=lambda s: (_last_s(s), s.record.id))
    if first.record.id in suspects:
        return [first]
    return [s for s in ready if s.record.id not in suspects]


def _plain_s(sequences: Listed[Sequence], costs: StepCosts) -> float:
    if not sequences:
        return 0.0
    return costs.seconds(len(sequences)) + costs.reading.step_s((s.cached, 1) for s in sequences)


def _longest_waiting_half(running: list[Sequence]) -> list[Sequence]:
    chosen = {s.record.id for s in sorted(running, key=_last_s)[: (len(running) + 1) // 2]}
    return [s for s in running if s.record.id in chosen]


def _allowed_tree(sequence: Sequence, most: int) -> Tree:
    """Cut the tree to `most` nodes and the request's bounds, and where the target's own token would end the request."""
    record = sequence.record
    bounds = record.speculation
    if sequence.tree is None or not bounds.enabled:
        return NO_TREE
    own = bounds.max_draft_tokens
    tree = sequence.tree.cut(most if own is None or own > most else own)
    max_depth = record.max_tokens - sequence.generated - 1
    return tree if len(tree.tokens) <= max_depth else _shallow(tree, max_depth)


def _shallow(tree: Tree, max_depth: int) -> Tree:
    return tree.keep(node for node, depth in enumerate(tree.depths()) if 0 < depth <= max_depth)
