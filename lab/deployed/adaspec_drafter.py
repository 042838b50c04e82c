"""Run a drafter node whose drafts end where AdaSpec has it: `python -m lab.deployed.adaspec_drafter COSTS NODE`.

COSTS: the file of the target's step costs.
"""

import sys
import time
from pathlib import Path
from typing import Any, Final, cast

from app import logs
from app.assembly.drafter import AnyGuesser, drafters_over, load_guessers
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.recent import RecentMedian
from app.state import NO_TREE, BatchEntry, CachedSequence, Guess
from lab.adaspec import MOST, AdaSpec
from workers.bootstrap import run
from workers.deployment import Deployment
from workers.log_redaction import redact_celery_log
from workers.roles import draft


def main() -> int:
    """Serve until SIGTERM; return the exit status."""
    file, node = sys.argv[1:]
    settings = Settings.from_env()
    logs.configure(settings.model_copy(update={"node": node}))
    redact_celery_log()
    deployment = Deployment.open(settings)
    costs = StepCosts.loads(Path(file).read_text())
    guessers = {
        name: cast(AnyGuesser, AdaSpecGuesser(guesser, AdaSpec(costs)))
        for name, guesser in load_guessers(settings).items()
    }
    service = draft.serve(deployment, node, drafters_over(guessers))
    service.begin()
    return run("draft", node, deployment, service)


class AdaSpecGuesser:
    """Ask a drafter's model for one token at a time until the rule ends the draft (`app.drafter.draft_kv.Guesser`).

    All of a round is drafted in one call. A later call for the same round returns no guesses, which ends the path.
    """

    def __init__(self, guesser: Any, rule: AdaSpec) -> None:
        self._guesser = guesser
        self._rule = rule
        self.max_context: Final = guesser.max_context - MOST
        self._token_s: dict[int, RecentMedian] = {}  # by sequences
        self._read: dict[str, int] = {}  # by request: tokens whose keys and values were computed
        self._drafted: dict[str, list[int]] = {}  # by request: the tokens that were drafted behind, a new list each job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guesser, name)

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        if not all(work.final for work in works):  # a piece of a prompt
            self._read.update((work.sequence.id, work.start + len(work.tokens)) for work in works)
            return self._guesser.guess(works, depth, floor)
        own = [work for work in works if self._drafted.get(work.sequence.id) is not work.sequence.tokens]
        found = dict(zip(map(id, own), self._draft(own) if own else [], strict=True))
        return [found.get(id(work), []) for work in works]

    def try_reserve(self, work: BatchEntry, ahead: int) -> bool:
        return bool(self._guesser.try_reserve(work, max(ahead, MOST - 1) if work.final else ahead))

    def cover(self, sequence: CachedSequence, tokens: int) -> None:
        self._guesser.cover(sequence, min(tokens, self._read.get(sequence.id, tokens)))

    def release(self, sequence: CachedSequence) -> None:
        self._guesser.release(sequence)
        self._read.pop(sequence.id, None)
        self._drafted.pop(sequence.id, None)

    def _draft(self, works: list[BatchEntry]) -> list[list[Guess]]:
        lengths = [len(work.sequence.tokens) for work in works]
        token_s = self._token_s.setdefault(len(works), RecentMedian())
        chains: list[list[Guess]] = [[] for _ in works]
        next_works = works

        def guess() -> list[float]:
            nonlocal next_works
            began_s = time.perf_counter()
            found = [chain[0] for chain in self._guesser.guess(next_works, 1, 0.0)]
            if next_works is not works:  # the first also reads the last verdict
                token_s.add(time.perf_counter() - began_s)
            next_works = [self._behind(work, one.token) for work, one in zip(next_works, found, strict=True)]
            for chain, one in zip(chains, found, strict=True):
                chain.append(one)
            return [one.confidence for one in found]

        steps, kept = self._rule.draft(lengths, self._usual_s(len(works)), guess)
        for work, length in zip(works, lengths, strict=True):
            del work.sequence.tokens[length:]
            self._guesser.cover(work.sequence, work.start)
            self._read[work.sequence.id] = length + steps - 1 if steps else work.start
            self._drafted[work.sequence.id] = work.sequence.tokens
        return [chain[:count] for chain, count in zip(chains, kept, strict=True)]

    def _usual_s(self, sequences: int) -> float:
        """Return the seconds of a token for so many, or for the nearest number of which they are known; 0 at first."""
        known = [size for size, seconds in self._token_s.items() if seconds.value]
        return self._token_s[min(known, key=lambda size: abs(size - sequences))].value if known else 0.0

    def _behind(self, work: BatchEntry, token: int) -> BatchEntry:
        """Append a token, and return the entry that reads it."""
        sequence = work.sequence
        start = work.start + len(work.tokens)
        self._guesser.cover(sequence, start)
        sequence.tokens.append(token)
        return BatchEntry(sequence, start, [token], NO_TREE, True)


if __name__ == "__main__":
    sys.exit(main())
