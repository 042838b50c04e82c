"""What a verifier measures at its start: the cost of a step by rows, and whether rows keep their bits."""

import logging
import time
from dataclasses import dataclass

import torch

from app.costs import CostTable
from app.engine.runner import ModelRunner
from app.messages import Record, Sampling, Speculation
from app.state import Sequence, Tree, Work

log = logging.getLogger(__name__)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
CONTEXT = 96  # cached tokens under the measured rows
PASSES = 5
FORKS = 3  # side branches of the tree whose cost is compared with a chain of as many rows


def measure_costs(runner: ModelRunner, vocab_size: int) -> CostTable:
    """Time one step for each number of packed rows, and a side branch, best of a few passes. Takes seconds."""
    sequence = _sequence(CONTEXT + max(ROWS), vocab_size)
    _run(runner, sequence, 0, CONTEXT)
    points = dict.fromkeys(ROWS, float("inf"))
    forked: dict[int, list[float]] = {0: [], FORKS: []}
    for _ in range(PASSES):  # pass by pass, so that a disturbance spoils one figure of each size at most
        for rows in ROWS:
            started = time.perf_counter()
            _run(runner, sequence, CONTEXT, CONTEXT + rows)
            points[rows] = min(points[rows], time.perf_counter() - started)
        for branches, times in forked.items():
            started = time.perf_counter()
            _run_tree(runner, sequence, branches)
            times.append(time.perf_counter() - started)
    runner.release(sequence)
    fork_s = max(0.0, min(forked[FORKS]) - min(forked[0])) / FORKS
    return CostTable(points, fork_s=fork_s)


@dataclass(frozen=True, slots=True)
class Exactness:
    """Rows compared with the same rows in other company, and how many of them had other bits."""

    rows: int
    different: int


def check_exactness(runner: ModelRunner, vocab_size: int) -> Exactness:
    """Compute the same rows alone, in chunks, in a batch and as tree nodes, and compare their bits."""
    whole = _sequence(150, vocab_size)
    tail = whole.tokens[-6:]
    _run(runner, whole, 0, 144)
    expected = [_run(runner, whole, i, i + 1)[0] for i in range(144, 150)]
    chunked = _sequence(150, vocab_size)
    for start, end in ((0, 7), (7, 40), (40, 131), (131, 144)):
        _run(runner, chunked, start, end)
    nodes = Tree([(tail[1] + 1) % vocab_size, *tail[1:]], [0, 0, 2, 3, 4, 5], [1.0] * 6, [("probe",)] * 6)
    work = Work(chunked, 144, tail[:1], nodes, final=True)
    other = Work(_sequence(33, vocab_size), 0, whole.tokens[:33], Tree(), final=True)
    runner.try_reserve(work)
    runner.try_reserve(other)
    logits = runner.forward([other, work])[1]
    assert logits is not None
    found = [logits.rows[0], *logits.rows[2:]]
    different = sum(not torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    runner.accept(work, [])
    for sequence in (whole, chunked, other.sequence):
        runner.release(sequence)
    if different:
        log.warning("%d of %d rows changed their bits with their company: near ties may flip", different, len(found))
    return Exactness(len(found), different)


def _run(runner: ModelRunner, sequence: Sequence, start: int, end: int) -> torch.Tensor:
    """Logits (1, V) of the last of the tokens `start ... end - 1`; the cache then covers them."""
    work = Work(sequence, start, sequence.tokens[start:end], Tree(), final=True)
    runner.try_reserve(work)
    logits = runner.forward([work])[0]
    assert logits is not None
    sequence.cached = end
    return logits.rows


def _run_tree(runner: ModelRunner, sequence: Sequence, branches: int) -> None:
    """A chain of 7 nodes, or a shorter one with `branches` leaves beside it, below the token at CONTEXT."""
    chain = 7 - branches
    parents = [*range(chain), *range(branches)]
    tree = Tree([1] * chain + [2] * branches, parents, [1.0] * 7, [("probe",)] * 7)
    work = Work(sequence, CONTEXT, sequence.tokens[CONTEXT : CONTEXT + 1], tree, final=True)
    runner.try_reserve(work)
    runner.forward([work])
    runner.accept(work, [])


def _sequence(length: int, vocab_size: int) -> Sequence:
    tokens = [(i * 7919 + 13) % vocab_size for i in range(length)]
    record = Record(
        id="probe",
        prompt_ids=tuple(tokens),
        max_tokens=1,
        eos_ids=(),
        sampling=Sampling(),
        speculation=Speculation(),
        created_s=0.0,
    )
    return Sequence(record, tokens)
