"""Run the same random steps on several runners, and compare the bits of their logits.

Steps have prompts' chunks, trees and commits of any of their paths; before each commit the pages that no
sequence holds are filled with NaN, so that a read of anything stale shows. One runner may take each entry of a
step alone: then rows are compared with the same rows beside others.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from app.engine.gpu.runner import ChosenRows, DeviceRunner
from app.state import BatchEntry, CachedSequence, Tree

ROWS = 10_000  # that exact mode is held to
NEW = 0.1  # of the sequences of a step, those that begin anew


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bounds of random steps."""

    sequences: int
    prompt: int  # tokens
    text: int  # tokens of a sequence, its prompt included
    nodes: int  # of a tree
    has_branches: bool = True  # trees have; else they are chains


@dataclass(slots=True)
class Compared:
    """What was compared, and how much of it differed."""

    steps: int = 0
    rows: int = 0
    rows_with_other_bits: int = 0
    flips: int = 0  # rows whose highest logit is another token's
    moved: int = 0  # nodes of committed paths that lay elsewhere than behind the text


class RandomSteps:
    """Sequences that live on each of the runners, with the same tokens and pages."""

    def __init__(
        self,
        runners: Sequence[DeviceRunner],
        vocab_size: int,
        sizes: Sizes,
        seed: int = 0,
        apart: DeviceRunner | None = None,
    ) -> None:
        """`runners` have the same weights, and pages for all sequences at once; `apart`, one of them, takes each
        entry alone."""
        self.compared = Compared()
        self._runners, self._vocab_size, self._sizes = runners, vocab_size, sizes
        self._apart = apart
        self._draw = random.Random(seed)
        self._texts = [
            [CachedSequence(f"text {i}", self._tokens(1)) for _ in runners] for i in range(sizes.sequences)
        ]  # by sequence, by runner

    def run(self, steps: int, has_time: Callable[[], bool]) -> Compared:
        """Run so many steps, as long as there is time; return what was compared since the beginning."""
        for _ in range(steps):
            if not has_time():
                break
            self._step()
        return self.compared

    @torch.inference_mode()
    def _step(self) -> None:
        chosen = self._draw.sample(self._texts, self._draw.randint(1, len(self._texts)))
        works = [self._entries(sequences) for sequences in chosen]  # by sequence, by runner
        found = [self._rows(runner, own) for runner, own in zip(self._runners, zip(*works, strict=True), strict=True)]
        self.compared.steps += 1
        for first, *others in zip(*found, strict=True):
            if first is not None:
                self.compared.rows += len(first.rows)
                for other in others:
                    assert other is not None
                    self.compared.rows_with_other_bits += int((first.rows != other.rows).any(1).sum())
                    self.compared.flips += int((first.rows.argmax(1) != other.rows.argmax(1)).sum())
        for runner, sequences in zip(self._runners, zip(*self._texts, strict=True), strict=True):
            _poison(runner, sequences)
        for own in works:
            self._commit(own)

    def _rows(self, runner: DeviceRunner, works: Sequence[BatchEntry]) -> list[ChosenRows | None]:
        if runner is not self._apart:
            return runner.forward(list(works))
        found: list[ChosenRows | None] = []
        for work in works:
            (rows,) = runner.forward([work])
            found.append(None if rows is None else replace(rows, rows=rows.rows.clone()))  # until the next step
        return found

    def _entries(self, sequences: Sequence[CachedSequence]) -> list[BatchEntry]:
        """Draw the sequence's rows in a step: a part of what is not cached, with a tree if that is all of it."""
        first = sequences[0]
        if len(first.tokens) + self._sizes.nodes + 1 > self._sizes.text or self._draw.random() < NEW:
            tokens = self._tokens(self._draw.randint(1, self._sizes.prompt))
            for runner, sequence in zip(self._runners, sequences, strict=True):
                runner.release(sequence)
                sequence.tokens[:] = tokens
        count = self._draw.randint(1, first.uncached)
        final, tree = count == first.uncached, Tree()
        if final:
            drafted = self._tokens(self._draw.randint(0, self._sizes.nodes))
            parents = [self._draw.randint(0, i) if self._sizes.has_branches else i for i in range(len(drafted))]
            tree = Tree(drafted, parents, [1.0] * len(drafted), [("bench",)] * len(drafted))
        start = first.cached
        tokens = first.tokens[start : start + count]
        works = [BatchEntry(sequence, start, tokens, tree, final=final) for sequence in sequences]
        for runner, work in zip(self._runners, works, strict=True):
            # Not `try_reserve`: an exact runner's would keep the main branch alone.
            if not runner.pool.try_grow(work.sequence.pages, start + count + len(tree)):
                raise MemoryError("the cache of this measurement was made too small")
        return works

    def _commit(self, works: Sequence[BatchEntry]) -> None:
        """Commit one path of the tree, with a token behind it."""
        tree = works[0].tree
        path = tree.path(self._draw.randint(0, len(tree)))
        self.compared.moved += sum(node != place for place, node in enumerate(path, start=1))
        added = [tree.tokens[node - 1] for node in path] + self._tokens(1) if works[0].final else []
        for runner, work in zip(self._runners, works, strict=True):
            runner.accept(work, path)
            work.sequence.tokens += added

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(self._vocab_size) for _ in range(count)]


def _poison(runner: DeviceRunner, sequences: Sequence[CachedSequence]) -> None:
    held = {page for sequence in sequences for page in sequence.pages}
    free = [page for page in range(runner.pool.num_pages) if page not in held]
    runner.pages.keys[:, free] = torch.nan
    runner.pages.values[:, free] = torch.nan
