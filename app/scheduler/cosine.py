"""Select a batch by CoSine's objective (papers 1.4), a baseline.

    min over B, gamma   (T(B, gamma) - lambda V(B, gamma)) / |B|,    V = |B| + survival of the candidates kept
    subject to          T <= T_max,  sum mem(l_i, gamma_i) <= M_max,  Gamma = sum of gamma_i <= Gamma_max

V is a gain: as the cost that the paper has, it would make gamma always 0. T is drafting plus verifying, or the longer
of the two while another batch is in flight. CoSine's solver is not known; here it is windows over the pool sorted by
length, and in each the candidates of most worth. Where Gamma > Gamma_max the sequence with the most candidates loses
one at a time (papers 1.5). Two rules are Paceline's: every window holds the sequence that has waited longest, and a
single sequence may exceed T_max. If no window fits M_max all go without candidates, and memory is reserved by age.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Protocol

from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.step_costs import StepCosts
from app.plans import Objective
from app.scheduler.tree_budget import LEAST_NODES, STEP_NODES, BatchRows
from app.state import Sequence, Tree

DraftSeconds = Callable[[int, int], float]  # (batch, depth) -> the seconds of drafting


class Memory(Protocol):
    @property
    def free_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Pooled:
    length: int  # its tokens
    rows: int  # without candidates
    since_s: float  # wall clock when it began to wait
    survival: tuple[float, ...] = ()  # of its candidates, falling
    depth: int = 0  # of the deepest candidate
    pages: tuple[int, ...] = (0,)  # KV pages it lacks with 0, 1, ... candidates


@dataclass(frozen=True, slots=True)
class BatchPrice:
    costs: StepCosts
    draft_s: DraftSeconds
    is_pipelined: bool = False

    def seconds(self, verify_s: float, batch: int, depth: int) -> float:
        draft_s = self.draft_s(batch, depth)
        return max(verify_s, draft_s) if self.is_pipelined else verify_s + draft_s


class CosineSelection:
    def __init__(self, draft_s: DraftSeconds, memory: Memory, objective: Objective) -> None:
        self._draft_s = draft_s
        self._memory = memory
        self._objective = objective

    def most_nodes(self, sequences: int) -> int:
        return min(self._objective.max_candidates, max(LEAST_NODES, STEP_NODES // max(1, sequences)))

    def select(self, sequences: Listed[Sequence], trees: Listed[Tree], rows: BatchRows) -> Listed[int | None]:
        pool = [_pooled(sequence, tree) for sequence, tree in zip(sequences, trees, strict=True)]
        price = BatchPrice(rows.costs, self._draft_s, rows.is_pipelined)
        free_pages = (self._memory.free_tokens - rows.chunk) // PAGE_TOKENS
        return choose(pool, price, rows.most - rows.chunk, free_pages, self._objective)


def choose(
    pool: Listed[Pooled], price: BatchPrice, max_rows: int, free_pages: float, objective: Objective
) -> list[int | None]:
    """Return how many candidates to verify of each; None leaves a sequence out. Tries O(n^2) windows of n sequences."""
    if not pool:
        return []
    search = _Search(pool, price, max_rows, free_pages, objective)
    order = sorted(range(len(pool)), key=lambda i: (pool[i].length, i))
    oldest = min(range(len(pool)), key=lambda i: (pool[i].since_s, i))
    place = order.index(oldest)
    best, best_value = dict.fromkeys(order, 0), inf  # where none fits, memory is given out by age, so that one goes on
    for first in range(place + 1):
        for end in range(place + 1, len(order) + 1):
            found = search.candidates(order[first:end])
            if found is not None and found[1] < best_value:
                best, best_value = found
    return [best.get(i) for i in range(len(pool))]


class _Search:
    def __init__(
        self, pool: Listed[Pooled], price: BatchPrice, max_rows: int, free_pages: float, objective: Objective
    ) -> None:
        self._pool, self._price, self._objective = pool, price, objective
        self._max_rows, self._free_pages = max_rows, free_pages
        reading = price.costs.reading
        plain_s = price.costs.seconds(sum(one.rows for one in pool))
        plain_s += reading.step_s((one.length, one.rows) for one in pool)
        self._token_s = objective.token_weight * plain_s / len(pool)  # lambda
        self._row_s = [one.length * reading.row_token_s for one in pool]  # of reading the context for one more row
        self._survival = [[*accumulate(one.survival, min)] for one in pool]  # min: never a child before its parent
        nodes = (
            (self._row_s[i] - self._token_s * survival, i) for i, own in enumerate(self._survival) for survival in own
        )
        self._owners = [i for _, i in sorted(nodes, key=itemgetter(0))]  # of the candidates, those of most worth first

    def candidates(self, window: Listed[int]) -> tuple[dict[int, int], float] | None:
        """Return the best candidates of these sequences, and the objective; None if a cap leaves no room."""
        pool, price, objective, batch = self._pool, self._price, self._objective, len(window)
        rows = sum(pool[i].rows for i in window)
        pages = sum(pool[i].pages[0] for i in window)
        if rows > self._max_rows or pages > self._free_pages:
            return None
        owners = self._fitting(window, pages)[: self._max_rows - rows]
        base_s = price.costs.reading.step_s((pool[i].length, pool[i].rows) for i in window)
        depth = max(pool[i].depth for i in window)

        def value(verify_s: float, survival: float, reading_s: float) -> float:
            whole_s = price.seconds(verify_s + base_s + reading_s, batch, depth)
            is_allowed = whole_s <= objective.max_s or batch == 1
            return (whole_s - self._token_s * (batch + survival)) / batch if is_allowed else inf

        places = {i: iter(self._survival[i]) for i in window}
        survivals = accumulate((next(places[i]) for i in owners), initial=0.0)
        readings_s = accumulate((self._row_s[i] for i in owners), initial=0.0)
        verify_s = price.costs.span(rows, len(owners) + 1)
        values = [*map(value, verify_s, survivals, readings_s)]
        best_n = values.index(min(values))
        if values[best_n] == inf:
            return None
        kept = dict.fromkeys(window, 0) | Counter(owners[:best_n])
        if best_n <= objective.max_candidates:
            return kept, values[best_n]
        for _ in range(best_n - objective.max_candidates):
            kept[max(kept, key=kept.__getitem__)] -= 1
        survival = sum(sum(self._survival[i][:count]) for i, count in kept.items())
        reading_s = sum(self._row_s[i] * count for i, count in kept.items())
        return kept, value(verify_s[objective.max_candidates], survival, reading_s)

    def _fitting(self, window: Listed[int], pages: int) -> list[int]:
        kept, found, full = dict.fromkeys(window, 0), list[int](), set[int]()
        for i in self._owners:
            if i not in kept or i in full:
                continue
            needed = self._pool[i].pages
            more = needed[kept[i] + 1] - needed[kept[i]]
            if pages + more > self._free_pages:
                full.add(i)
                continue
            pages, kept[i] = pages + more, kept[i] + 1
            found.append(i)
        return found


def _pooled(sequence: Sequence, tree: Tree) -> Pooled:
    length = len(sequence.tokens)
    held, branches, pages = len(sequence.kv.pages), 0, [-(-length // PAGE_TOKENS)]
    inner = set[int]()
    for nodes, parent in enumerate(tree.parents, start=1):
        branches += parent in inner  # one more child of it: a fork, whose last page is its own
        inner.add(parent)
        pages.append(-(-(length + nodes) // PAGE_TOKENS) + branches)
    return Pooled(
        length,
        sequence.uncached,
        sequence.last_token_s or sequence.record.created_s,
        tuple(tree.survival),
        max(tree.depths()),
        tuple(max(0, each - held) for each in pages),
    )
