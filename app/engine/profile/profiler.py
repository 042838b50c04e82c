"""Measure a target's step costs, and whether rows keep their bits."""

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from app.engine.cpu.equivalence import probe
from app.engine.step_costs import Reading, StepCosts
from app.engine.target import Target, TargetRows
from app.state import BatchEntry, CachedSequence, Tree

log = logging.getLogger(__name__)


class LogitRows(TargetRows, Protocol):
    @property
    def rows(self) -> torch.Tensor: ...


class ProfiledTarget(Target, Protocol):
    def forward(self, works: list[BatchEntry]) -> Listed[LogitRows | None]: ...


ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
CONTEXT = 96  # cached tokens under the measured rows
PASSES = 5
FIRST_ROWS, FIRST_PASSES = (1, 2, 4, 8, 16), 2  # before the first request
ENOUGH_S = 3.0  # of passes, after which the least of two counts: long steps are disturbed little
LONG_CONTEXT = 2048  # cached tokens under the rows that price contexts; fewer where fewer fit
LONG_ROWS = (1, 8)
# Where chunks of the probe end, and up to where the next rows are then verified as trees: across borders of 64
# tokens, where kernels go on with another loop or slice of keys. From two places each, so that the border parts rows
# of one tile, whether a tile has two of them or more.
CHECKS = ((7, 7), (40, 40), (125, 132), (126, 132), (189, 198), (190, 198))


def measure_costs(
    runner: ProfiledTarget,
    vocab_size: int,
    context_tokens: int,
    sizes: tuple[int, ...] = ROWS,
    passes: int = PASSES,
    *,
    is_rough: bool = False,
) -> StepCosts:
    """`sizes`: rows of the timed steps; `is_rough`: other work may run beside them. Takes seconds."""
    reading = _reading(runner, vocab_size, context_tokens, passes)
    most = sizes[-1]
    with _cached(runner, vocab_size, most) as sequence:
        verified = _timed(runner, sequence, [(CONTEXT, rows) for rows in sizes], passes)
        logits_s = _logits_seconds(runner, sequence, verified[CONTEXT, most], passes)
    points = {rows: max(took_s / 2, took_s - reading.seconds(CONTEXT, rows)) for (_, rows), took_s in verified.items()}
    most_s = max(0.0, points[most] - points[1]) / (2 * most)  # a disturbed first row may look dearer than all
    return StepCosts(points, reading=reading, logits_s=min(logits_s, most_s), is_rough=is_rough)


def _logits_seconds(runner: ProfiledTarget, sequence: CachedSequence, verified_s: float, passes: int) -> float:
    """`verified_s`: seconds of a step of all the sequence's further rows, each with logits."""
    rest = sequence.tokens[CONTEXT:]
    chunk = BatchEntry(sequence, CONTEXT, rest, Tree(), final=True)
    read_s = min(step_seconds(runner, [chunk]) for _ in range(passes))
    return max(0.0, verified_s - read_s) / (len(rest) - 1)


def times(runner: ProfiledTarget, vocab_size: int, sizes: tuple[int, ...], passes: int = 3) -> dict[int, float]:
    with _cached(runner, vocab_size, max(sizes)) as sequence:
        points = _timed(runner, sequence, [(CONTEXT, rows) for rows in sizes], passes)
    return {rows: seconds for (_, rows), seconds in points.items()}


@contextmanager
def a_step(runner: ProfiledTarget, vocab_size: int, rows: int) -> Iterator[Callable[[], float]]:
    """Yield a timer of a step of `rows` rows over CONTEXT cached tokens."""
    with _cached(runner, vocab_size, rows) as sequence:
        yield lambda: _seconds(runner, sequence, CONTEXT, rows - 1)


@contextmanager
def _cached(runner: ProfiledTarget, vocab_size: int, rows: int) -> Iterator[CachedSequence]:
    """Yield a sequence of CONTEXT cached tokens and further ones for `rows` rows."""
    sequence = probe(CONTEXT + rows, vocab_size)
    _run(runner, sequence, 0, CONTEXT)
    yield sequence
    runner.release(sequence)


def _reading(runner: ProfiledTarget, vocab_size: int, context_tokens: int, passes: int) -> Reading:
    longest = min(LONG_CONTEXT, context_tokens, runner.capacity_tokens // 2) - max(LONG_ROWS)
    if longest < 2 * CONTEXT:
        return Reading()
    sequence = probe(longest + max(LONG_ROWS), vocab_size)
    runner.try_reserve(BatchEntry(sequence, 0, sequence.tokens, Tree(), final=True))
    points = [(context, rows) for context in (CONTEXT, longest) for rows in LONG_ROWS]
    seconds = _timed(runner, sequence, points, passes)
    runner.release(sequence)
    few, many = ((seconds[longest, rows] - seconds[CONTEXT, rows]) / (longest - CONTEXT) for rows in LONG_ROWS)
    few = max(0.0, min(few, many))  # more rows never take less: then the few were disturbed
    row_token_s = max(0.0, (many - few) / (LONG_ROWS[1] - LONG_ROWS[0]))
    return Reading(max(0.0, few - row_token_s * LONG_ROWS[0]), row_token_s)


def _timed(
    runner: ProfiledTarget, sequence: CachedSequence, points: list[tuple[int, int]], passes: int
) -> dict[tuple[int, int], float]:
    found, began_s = dict.fromkeys(points, float("inf")), time.perf_counter()
    for done in range(passes):
        if done >= 2 and time.perf_counter() - began_s > ENOUGH_S:
            break
        for context, rows in points:
            found[context, rows] = min(found[context, rows], _seconds(runner, sequence, context, rows - 1))
    return found


@dataclass(frozen=True, slots=True)
class Exactness:
    rows: int
    different: int

    def warn(self) -> None:
        if self.different:
            log.warning("%d of %d rows changed bits with their company: near ties may flip", self.different, self.rows)


def check_exactness(runner: ProfiledTarget, vocab_size: int, checks: Listed[tuple[int, int]] = CHECKS) -> Exactness:
    tokens = probe(checks[-1][1], vocab_size).tokens
    expected = _alone(runner, tokens, checks)
    other = BatchEntry(probe(33, vocab_size), 0, tokens[:33], Tree(), final=True)
    runner.try_reserve(other)
    chunked = CachedSequence("probe", tokens)
    rows = different = read = 0
    for start, end in checks:
        _run(runner, chunked, read, start)
        read = start
        for tree in _chain_and_fork(tokens[start + 1 : end], vocab_size):
            work = BatchEntry(chunked, start, [tokens[start]], tree, final=True)
            runner.try_reserve(work)
            answer = runner.forward([other, work])[1]
            assert answer is not None
            found = [answer.rows[node] for node in (0, *work.tree.walk(tokens[start + 1 : end]).path)]
            rows += len(found)
            different += sum(not torch.equal(row, expected[start + i]) for i, row in enumerate(found))
            runner.accept(work, [])
    for sequence in (chunked, other.sequence):
        runner.release(sequence)
    return Exactness(rows, different)


def _alone(runner: ProfiledTarget, tokens: list[int], checks: Listed[tuple[int, int]]) -> dict[int, torch.Tensor]:
    sequence, found, read = CachedSequence("probe", tokens), {}, 0
    for row in sorted({row for start, end in checks for row in range(start, end)}):
        if read < row:
            _run(runner, sequence, read, row)
        found[row] = _run(runner, sequence, row, row + 1)[0]
        read = row + 1
    runner.release(sequence)
    return found


def _chain_and_fork(tokens: list[int], vocab_size: int) -> Iterator[Tree]:
    nodes = len(tokens)
    if nodes:
        yield Tree(tokens, list(range(nodes)), [1.0] * nodes, [("probe",)] * nodes)
        wrong, parents = (tokens[0] + 1) % vocab_size, [0, 0, *range(2, nodes + 1)]
        yield Tree([wrong, *tokens], parents, [1.0] * (nodes + 1), [("probe",)] * (nodes + 1))


def _run(runner: ProfiledTarget, sequence: CachedSequence, start: int, end: int) -> torch.Tensor:
    work = BatchEntry(sequence, start, sequence.tokens[start:end], Tree(), final=True)
    runner.try_reserve(work)
    logits = runner.forward([work])[0]
    assert logits is not None
    runner.cover(sequence, end)
    return logits.rows.clone()  # a device may write the next step's to the same place


def _seconds(runner: ProfiledTarget, sequence: CachedSequence, context: int, nodes: int) -> float:
    return step_seconds(runner, [verified(sequence, context, nodes)])


def verified(sequence: CachedSequence, context: int, nodes: int) -> BatchEntry:
    tree = Tree([1] * nodes, [*range(nodes)], [1.0] * nodes, [("probe",)] * nodes)
    return BatchEntry(sequence, context, sequence.tokens[context : context + 1], tree, final=True)


def step_seconds(runner: ProfiledTarget, works: list[BatchEntry]) -> float:
    """The cache is unchanged."""
    for work in works:
        runner.try_reserve(work)
    started = time.perf_counter()
    runner.forward(works)
    took_s = time.perf_counter() - started
    for work in works:
        runner.drop(work)  # not `accept`: what was never computed must not be found by others
    return took_s
