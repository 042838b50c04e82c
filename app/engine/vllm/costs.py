"""Measure the seconds of vLLM's steps by their rows, as `app.engine.profile.profiler` does for own engines.

vLLM's requests cannot compute a row twice, so each timed step goes on behind the last one's rows.
"""

import time

from app.engine.cpu.equivalence import probe
from app.engine.profile.profiler import ENOUGH_S
from app.engine.step_costs import Reading, StepCosts
from app.engine.vllm.target import MOST_DRAFTS, VLLMTarget
from app.logs import STARTING
from app.state import CHAIN, BatchEntry, CachedSequence, Tree

SEQUENCES = (1, 4, 16)
DRAFTS = (0, 1, 3, 7, MOST_DRAFTS - 1)
CONTEXT, LONG_CONTEXT = 96, 2048  # tokens below the rows
MOST_ROWS = 128
PASSES = 4


def measure_costs(target: VLLMTarget, vocab_size: int, max_sequences: int) -> StepCosts:
    """Takes seconds."""
    points: dict[int, float] = {}
    for count in SEQUENCES:
        if count > max_sequences or count * (CONTEXT + PASSES * MOST_DRAFTS * 2) > target.capacity_tokens:
            continue
        sequences = [_probe(CONTEXT, i, vocab_size) for i in range(count)]
        for drafts in DRAFTS:
            if count * (1 + drafts) <= MOST_ROWS:
                rows = count * (1 + drafts)
                STARTING.info("warming up: timing steps of %d rows", rows)
                seconds = _best_s(target, sequences, drafts)
                points[rows] = min(seconds, points.get(rows, seconds))
        for sequence in sequences:
            target.release(sequence)
    reading = Reading(token_s=_reading_s(target, vocab_size, points[1]))
    target.reset()
    return StepCosts(points, reading=reading)


def _reading_s(target: VLLMTarget, vocab_size: int, short_s: float) -> float:
    longest = min(LONG_CONTEXT, target.longest_tokens - 2 * PASSES, target.capacity_tokens // 2)
    if longest < 2 * CONTEXT:
        return 0.0
    sequence = _probe(longest, 0, vocab_size)
    long_s = _best_s(target, [sequence], 0)
    target.release(sequence)
    return max(0.0, (long_s - short_s) / (longest - CONTEXT))


def _best_s(target: VLLMTarget, sequences: list[CachedSequence], drafts: int) -> float:
    """Return the seconds of the fastest of some steps, behind one that reads what is not cached."""
    best_s, timed_s = float("inf"), 0.0
    for turn in range(1 + PASSES):
        if turn > 2 and timed_s > ENOUGH_S:
            break
        tree = Tree([1] * drafts, CHAIN[:drafts], [1.0] * drafts, [("probe",)] * drafts)
        works = [_entry(sequence, tree if turn else Tree()) for sequence in sequences]
        for work in works:
            target.try_reserve(work)
        began_s = time.perf_counter()
        rows = target.forward(works)
        took_s = time.perf_counter() - began_s
        for work, row in zip(works, rows, strict=True):
            assert row is not None
            target.accept(work, [*range(1, len(row.tokens))])
            work.sequence.tokens += row.tokens
        if turn:
            best_s, timed_s = min(best_s, took_s), timed_s + took_s
    return best_s


def _entry(sequence: CachedSequence, tree: Tree) -> BatchEntry:
    return BatchEntry(sequence, sequence.cached, sequence.tokens[sequence.cached :], tree, final=True)


def _probe(length: int, number: int, vocab_size: int) -> CachedSequence:
    found = probe(length, vocab_size)
    return CachedSequence(f"probe {number}", [(token + number) % vocab_size for token in found.tokens])
