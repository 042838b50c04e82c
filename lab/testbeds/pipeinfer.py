"""Simulate PipeInfer (arXiv:2407.11798) in a world: asynchronous speculation through a pipeline.

For each sequence a single-token run of its newest token and speculative micro-runs of few drafted tokens are in flight
at once. Runs that wait at the first stage go as one pass; when a token turns out wrong, all later runs of its sequence
are cancelled in the stages that they have not reached, and drafting starts again behind the target's token. The length
of a micro-run is fixed. Assumed, in favour of PipeInfer: its one drafter guesses for every sequence at once without
waiting for others; cancelling takes no time; one run of a sequence more than there are stages is drafted ahead. Costs
and drafts are those of all other arms.
"""

from collections import deque
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from lab.simulate.log import Log
from lab.testbeds.figures import RequestTimes, Served
from lab.testbeds.roofline import context_s, guess_s, step_costs
from lab.testbeds.worlds import WorldSpec


@dataclass(slots=True)
class Run:
    """Rows of one sequence in flight: its prompt, its newest token, or drafted ones from position `at` on."""

    sequence: "Sequence"
    at: int
    rows: int
    is_draft: bool = False
    is_cancelled: bool = False


@dataclass(slots=True)
class Sequence:
    """A text and what is known of it; `right[i]`: is the drafter's guess at its i-th token right."""

    right: Listed[bool]
    prompt: int
    began_s: float
    known: int = 0  # tokens that the target has chosen
    drafted: int = 0  # the position up to which there are drafts
    runs: list[Run] = field(default_factory=list)  # in flight, in order
    turn: int = 0  # of drafting; a draft of an earlier one is stale
    is_drafting: bool = False
    first_s: float = 0.0


class PipeInfer:
    """The drafter, the stages of the target, and the runs between them."""

    def __init__(
        self,
        world: WorldSpec,
        log: Log,
        drafter: str,
        tokens: int,
        streams: int,
        requests: int,
        arrivals_s: Listed[float] | None = None,
    ) -> None:
        """Draft with this one drafter, in micro-runs of `tokens`; serve as `lab.testbeds.play.play` does."""
        self._costs, self._host_s = step_costs(world), world.target.host_s.value
        self._stages = round(world.target.stages.value)
        self._tokens = tokens
        by_batch = guess_s(world, drafter)
        self._guess_s = by_batch[min(size for size in by_batch if size >= streams)]
        self._context_s = streams * context_s(world, drafter)
        link, own = world.target.link, world.drafters[drafter].link
        self._hop_s = world.hop_s.value
        if link is not None and own is not None:
            self._hop_s = world.links[link].latency_s.value + world.links[own].latency_s.value
        self._waiting: deque[Run] = deque()  # at the first stage
        self._free_s = [0.0] * self._stages
        self._events: list[tuple[float, int, Any]] = []
        self._order = count()
        self._texts = deque(
            (len(text.prompt_ids), _right(text.tokens, log.drafters[drafter].guesses[i]))
            for i, text in enumerate(log.texts)
        )
        self.served = Served()
        self._is_open = arrivals_s is not None
        self._texts = deque(self._texts[i % len(self._texts)] for i in range(requests))
        for at_s in [0.0] * streams if arrivals_s is None else arrivals_s:
            self._later(at_s, self._admit)

    def run(self) -> Served:
        while self._events:
            now_s, _, (call, *words) = heappop(self._events)
            call(now_s, *words)
        return self.served

    def _later(self, at_s: float, *what: Any) -> None:
        heappush(self._events, (at_s, next(self._order), what))

    def _admit(self, now_s: float) -> None:
        if self._texts:
            prompt, right = self._texts.popleft()
            self._enter(now_s, Run(Sequence(right, prompt, now_s), 0, prompt))

    def _enter(self, now_s: float, run: Run) -> None:
        """Put a run before the first stage, which takes it when it is free."""
        run.sequence.runs.append(run)
        self._waiting.append(run)
        self._later(max(now_s, self._free_s[0]), self._begin)

    def _begin(self, now_s: float) -> None:
        """Begin a pass of all runs that wait, if the first stage is free."""
        if now_s < self._free_s[0]:
            return
        runs = [run for run in self._waiting if not run.is_cancelled]
        self._waiting.clear()
        if runs:
            self._stage(now_s, 0, runs)

    def _stage(self, now_s: float, stage: int, runs: list[Run]) -> None:
        """Run a pass in a stage, without the runs that were cancelled since, and send it to the next one."""
        runs = [run for run in runs if not run.is_cancelled]
        if not runs:
            return
        if stage == self._stages:
            self._later(now_s + self._host_s, self._end, runs)
            return
        if now_s < self._free_s[stage]:
            self._later(self._free_s[stage], self._stage, stage, runs)
            return
        seconds = self._costs.seconds(sum(run.rows for run in runs))
        seconds += self._costs.reading.step_s((_context(run), run.rows) for run in runs)
        self._free_s[stage] = now_s + seconds / self._stages
        self._later(self._free_s[stage], self._stage, stage + 1, runs)
        if stage == 0:
            self._later(self._free_s[0], self._begin)

    def _end(self, now_s: float, runs: list[Run]) -> None:
        for run in runs:
            if not run.is_cancelled:
                self._take(now_s, run)

    def _take(self, now_s: float, run: Run) -> None:
        """Take the target's token after each row of a run; a drafted row gives one if its own token is right."""
        one = run.sequence
        one.runs.remove(run)
        if one.known == 0:
            one.first_s = now_s - one.began_s
        if not run.is_draft:
            one.known += 1
        for at in range(run.at, run.at + run.rows * run.is_draft):
            if at >= one.known or not one.right[at]:
                break
            one.known = max(one.known, at + 2)
            self.served.accepted += 1
        if one.known >= len(one.right):
            self._finish(now_s, one)
        elif one.known > one.drafted or not one.right[one.known - 1]:
            self._restart(now_s, one)
        self._draft(now_s, one)

    def _restart(self, now_s: float, one: Sequence) -> None:
        """Cancel what is in flight, send the newest token through alone, and draft on behind it."""
        for run in one.runs:
            run.is_cancelled = True
        one.runs = []
        one.turn, one.is_drafting, one.drafted = one.turn + 1, False, one.known
        self._enter(now_s, Run(one, one.known - 1, 1))

    def _draft(self, now_s: float, one: Sequence) -> None:
        size = min(self._tokens, len(one.right) - 1 - one.drafted)  # the last token needs no row
        if one.is_drafting or size <= 0 or len(one.runs) > self._stages:
            return
        one.is_drafting = True
        is_new = one.drafted == one.known  # the newest token must reach the drafter first
        seconds = size * (self._guess_s + self._context_s * (one.prompt + one.drafted))
        self._later(now_s + self._hop_s * is_new + seconds, self._drafted, one, one.turn, size)

    def _drafted(self, now_s: float, one: Sequence, turn: int, size: int) -> None:
        if turn != one.turn:
            return
        at, one.drafted, one.is_drafting = one.drafted, one.drafted + size, False
        self.served.drafted += size
        self._later(now_s + self._hop_s, self._arrive, one, turn, at, size)
        self._draft(now_s, one)

    def _arrive(self, now_s: float, one: Sequence, turn: int, at: int, size: int) -> None:
        if turn == one.turn:
            self._enter(now_s, Run(one, at, size, is_draft=True))

    def _finish(self, now_s: float, one: Sequence) -> None:
        for run in one.runs:
            run.is_cancelled = True
        one.turn, one.drafted = one.turn + 1, len(one.right)
        total_s = now_s - one.began_s
        token_s = (total_s - one.first_s) / max(1, len(one.right) - 1)
        self.served.add(now_s, RequestTimes(total_s, one.first_s, token_s), len(one.right))
        if not self._is_open:
            self._admit(now_s)


def _context(run: Run) -> int:
    return run.sequence.prompt + run.at if run.sequence.known else 0


def _right(tokens: Listed[int], guesses: Listed[Listed[Any]]) -> list[bool]:
    return [bool(guesses[i]) and guesses[i][0].token == token for i, token in enumerate(tokens)]
