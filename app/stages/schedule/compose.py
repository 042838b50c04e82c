"""Decide what a verifier does next: which sequences go into the step, how much of each tree is worth its rows.

Pure functions of the sequences, the policy and the clock: nothing here waits, sends or changes state. The
rule for rows is D5's: the n best nodes of the batch, for the n that gives the most tokens a second.
"""

from collections.abc import Callable, Set
from collections.abc import Sequence as Listed
from itertools import accumulate
from operator import add, truediv

from app.estimates.step_costs import StepCosts
from app.policy import Policy
from app.stages.schedule.prefill import split_prefill
from app.state import BatchEntry, Sequence, Tree

# Of running sequences and the trees they may have verified, within so many rows: nodes of each tree, None to leave out
Select = Callable[[Listed[Sequence], Listed[Tree], int], list[int | None]]
OTHERS_TIME = 3.0  # for every second of long contexts' own steps the others get so many
TAIL_TOKENS = 8  # a running sequence with no more than this uncached decodes; else it is refilled


def compose(
    sequences: Listed[Sequence],
    policy: Policy,
    now_s: float,
    costs: StepCosts,
    suspects: Set[str] = frozenset(),
    is_together: bool = False,
    select: Select | None = None,
    in_halves: bool = False,
) -> list[BatchEntry]:
    """The next batch, empty if all wait for trees (see `wait_s`). Oldest first; at most `max_batch_tokens`
    rows.

    Running sequences that are ready get their rows first, but while a prompt waits a chunk is kept free for it
    (`app.stages.schedule.prefill` shares it out), so neither side starves the other; trees get what rows are left,
    cut to what pays. Suspects of having brought a verifier down run alone, in turn with the others: whoever committed
    longest ago is next. With `is_together` the running sequences go in one batch, so while one waits only prompts are
    read. With `in_halves`, where all could go, those who waited longest do, so that the others' turn comes while
    these draft. `select` decides instead of `cut`, and may leave sequences out. Contexts of `apart_tokens` or more go
    in steps of their own (`_party`), and trees get no more than the policy's `verify_budget`.
    """
    sequences = _turn(sequences, policy, now_s, costs, is_together)
    is_held = is_together and any(not _is_ready(s, now_s) for s in sequences)
    ready = sorted(
        (s for s in sequences if _is_ready(s, now_s) and not (is_held and _is_running(s))),
        key=lambda s: (s.record.created_s, s.record.id),
    )
    ready = _suspects_apart(ready, suspects)
    prompts = [s for s in ready if not _is_running(s)]
    chunk_tokens = min(policy.prefill_chunk_tokens, policy.max_batch_tokens)
    wanted = min(chunk_tokens, sum(s.uncached for s in prompts))
    running = [s for s in ready if _is_running(s)]
    if in_halves and len(running) == sum(_is_running(s) for s in sequences):
        running = _longest_waiting_half(running)
    running = _first(running, policy.max_batch_tokens - min(wanted, _reserve(policy)))
    base_rows = sum(s.uncached for s in running)
    reading = costs.reading
    chunks: list[BatchEntry] = []
    if prompts:
        decoding = [s for s in sequences if _is_running(s)]  # those that wait for their trees, too
        chunks = split_prefill(prompts, policy.max_batch_tokens - base_rows, costs, policy, _plain_s(decoding, costs))
    base_rows += sum(len(work.tokens) for work in chunks)

    others = sum(work.final for work in chunks)
    base_s = sum(reading.seconds(s.cached, s.uncached) for s in running)
    base_s += sum(reading.seconds(work.start, len(work.tokens)) for work in chunks)
    trees = _lopped([_allowed_tree(s, policy) for s in running], base_rows, costs, others, base_s)
    max_rows = policy.max_batch_tokens
    if policy.verify_budget is not None:
        max_rows = min(max_rows, base_rows + policy.verify_budget)
    row_s = [s.cached * reading.row_token_s for s in running]
    kept: Listed[int | None] = (
        select(running, trees, max_rows - sum(len(work.tokens) for work in chunks))
        if select
        else cut(trees, base_rows, costs, max_rows, others, base_s, row_s)
    )
    decodes = [
        s.entry(len(s.tokens), tree.cut(nodes))
        for s, tree, nodes in zip(running, trees, kept, strict=True)
        if nodes is not None
    ]
    return decodes + chunks


def wait_s(
    sequences: Listed[Sequence], now_s: float, is_together: bool = False, apart_tokens: int | None = None
) -> float | None:
    """How long until something can go on without the trees that are missing: 0 if something is ready now,
    None if there is no sequence."""
    return min((_wait_s(party, now_s, is_together) for party in _by_context(sequences, apart_tokens)), default=None)


def cut(
    trees: Listed[Tree],
    base_rows: int,
    costs: StepCosts,
    max_rows: int,
    other_sequences: int = 0,
    base_s: float = 0.0,
    row_s: Listed[float] = (),
) -> list[int]:
    """How many nodes of each tree to verify: the n best of all by survival, for the n that maximises
    (sequences + their survival) / seconds(base_rows + n). 0 allowed; the fewest at equal worth.

    The maximum over *all* n: seconds() has steps, behind which more rows can pay again. `other_sequences`
    commit a token in this step without a tree. Among nodes of equal survival the earlier tree's go first.
    Reading contexts takes `base_s` without any node, and `row_s` more for each node, by tree: what that is worth at
    the pace without nodes is taken off a node's survival when the best are picked.
    """
    survival = [s for tree in trees for s in accumulate(tree.survival, min)]  # min: never a child before its parent
    owners = [i for i, tree in enumerate(trees) for _ in tree.survival]
    value, sequences = survival, len(trees) + other_sequences
    if any(row_s):
        pace = sequences / (costs.seconds(base_rows) + base_s)
        value = [s - pace * row_s[owner] for s, owner in zip(survival, owners, strict=True)]
    order = sorted(range(len(value)), key=value.__getitem__, reverse=True)  # stable, reverse too
    del order[max(0, max_rows - base_rows) :]
    tokens = accumulate((survival[index] for index in order), initial=float(sequences))
    seconds = costs.span(base_rows, len(order) + 1)
    if base_s:
        nodes_s = (row_s[owners[index]] if row_s else 0.0 for index in order)
        seconds = [*map(add, seconds, accumulate(nodes_s, initial=base_s))]
    paces = list(map(truediv, tokens, seconds))
    best_n = paces.index(max(paces))
    kept = [0] * len(trees)
    for index in order[:best_n]:
        kept[owners[index]] += 1
    return kept


def _turn(
    sequences: Listed[Sequence], policy: Policy, now_s: float, costs: StepCosts, is_together: bool
) -> Listed[Sequence]:
    """Those among whom the step is made up. Where both parties are ready, long contexts have their turn once the others
    have gone on for OTHERS_TIME times what that turn takes: so neither side waits for ever."""
    parties = _by_context(sequences, policy.apart_tokens)
    if len(parties) < 2:
        return sequences
    others, apart = parties
    if _wait_s(apart, now_s, is_together):
        return others
    if _wait_s(others, now_s, is_together):
        return apart
    turn_s = _plain_s(apart, costs)
    gone_on_s = max(_last_s(s) for s in others if _is_running(s)) - min(_last_s(s) for s in apart)
    return apart if gone_on_s >= OTHERS_TIME * turn_s else others


def _by_context(sequences: Listed[Sequence], apart_tokens: int | None) -> list[Listed[Sequence]]:
    """All of them; or the others and the running ones of long contexts, where there are running ones of both kinds."""
    if not sequences:
        return []
    if apart_tokens is not None:
        is_apart = [_is_running(s) and s.cached >= apart_tokens for s in sequences]
        apart = [s for s, is_long in zip(sequences, is_apart, strict=True) if is_long]
        others = [s for s, is_long in zip(sequences, is_apart, strict=True) if not is_long]
        if apart and any(_is_running(s) for s in others):
            return [others, apart]
    return [sequences]


def _wait_s(party: Listed[Sequence], now_s: float, is_together: bool) -> float:
    """How long until somebody of the party can go on."""
    waits = [0.0 if _is_ready(s, now_s) else s.due_s - now_s for s in party]
    return max(waits) if is_together and any(waits) and all(_is_running(s) for s in party) else min(waits)


def _last_s(sequence: Sequence) -> float:
    """Since when it waits for its next token."""
    return sequence.stats.last_token_s or sequence.record.created_s


def _is_running(sequence: Sequence) -> bool:
    """Past its prompt and up to date: it decodes. Otherwise a prompt, or one that lost its cache."""
    return sequence.generated > 0 and sequence.uncached <= TAIL_TOKENS


def _is_ready(sequence: Sequence, now_s: float) -> bool:
    """A prompt never waits; a running sequence does for its tree, until it is due."""
    return sequence.tree is not None or sequence.due_s <= now_s or not _is_running(sequence)


def _suspects_apart(ready: list[Sequence], suspects: Set[str]) -> list[Sequence]:
    """Either all that are not suspected, or one suspect: the side that holds whoever has waited longest."""
    if not suspects or not ready:
        return ready
    first = min(ready, key=lambda s: (_last_s(s), s.record.id))
    if first.record.id in suspects:
        return [first]
    return [s for s in ready if s.record.id not in suspects]


def _plain_s(sequences: Listed[Sequence], costs: StepCosts) -> float:
    """What a step of these takes without trees; 0 for none."""
    if not sequences:
        return 0.0
    return costs.seconds(len(sequences)) + sum(costs.reading.seconds(s.cached, 1) for s in sequences)


def _reserve(policy: Policy) -> int:
    """Rows that running sequences leave to a waiting prompt: a chunk, but at most half of the step."""
    return min(policy.prefill_chunk_tokens, policy.max_batch_tokens // 2)


def _longest_waiting_half(running: list[Sequence]) -> list[Sequence]:
    """In the order they are in."""
    chosen = {s.record.id for s in sorted(running, key=_last_s)[: (len(running) + 1) // 2]}
    return [s for s in running if s.record.id in chosen]


def _first(running: list[Sequence], max_rows: int) -> list[Sequence]:
    """As many of the oldest as fit."""
    ends = accumulate(s.uncached for s in running)
    return [s for s, end in zip(running, ends, strict=True) if end <= max_rows]


def _allowed_tree(sequence: Sequence, policy: Policy) -> Tree:
    """What of the sequence's tree may be verified at all: its own and the policy's bounds, and no node so
    deep that the target's own token would already end the request."""
    speculation = sequence.record.speculation
    if sequence.tree is None or not speculation.enabled:
        return Tree()
    own = policy.max_draft_tokens if speculation.max_draft_tokens is None else speculation.max_draft_tokens
    tree = sequence.tree.cut(min(own, policy.max_draft_tokens))
    return _shallow(tree, sequence.record.max_tokens - sequence.generated - 1)


def _shallow(tree: Tree, max_depth: int) -> Tree:
    """Leave out the nodes deeper than `max_depth`."""
    if len(tree) <= max_depth:
        return tree
    return tree.keep(node for node, depth in enumerate(tree.depths()) if 0 < depth <= max_depth)


def _lopped(trees: list[Tree], base_rows: int, costs: StepCosts, others: int, base_s: float) -> list[Tree]:
    """Without the side branches that cost more than they bring: a branch off the main one (first children) costs
    `fork_s` beside its rows, so its survival must be worth that time at the pace of the step as a whole."""
    if costs.fork_s == 0.0 or not any(len(set(tree.parents)) < len(tree) for tree in trees):
        return trees
    whole = base_rows + sum(len(tree) for tree in trees)
    tokens = len(trees) + others + sum(sum(tree.survival) for tree in trees)
    least = costs.fork_s * max(
        (len(trees) + others) / (costs.seconds(base_rows) + base_s), tokens / (costs.seconds(whole) + base_s)
    )
    return [_without_branches(tree, least) for tree in trees]


def _without_branches(tree: Tree, least: float) -> Tree:
    """Keep the main branch, and side branches whose nodes' survival sums to `least`."""
    tip, branch = 0, [0]  # branch: of every node the side branch it is on, named by its first node; 0 is the main one
    worth: dict[int, float] = {0: least}
    for node, parent in enumerate(tree.parents, start=1):
        if parent == tip and branch[parent] == 0:
            tip = node
            branch.append(0)
        else:
            branch.append(branch[parent] or node)
            worth[branch[-1]] = worth.get(branch[-1], 0.0) + tree.survival[node - 1]
    return tree.keep(node for node, name in enumerate(branch) if node and worth[name] >= least)
