"""The sequences a verifier runs: their memory, their drafts under way, who may draft for them."""

import logging
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import inf
from typing import Literal

from app.clock import SYSTEM, Clock
from app.costs import CostTable, DraftCosts
from app.crew import Crew
from app.errands import Errands
from app.expectation import Expectations
from app.messages import DraftJob, Policy, TreeMessage
from app.offered import tree_of
from app.routing import Route, Router
from app.stages.ask import HORIZON_TOKENS, Candidate, ask, enough, probe, worth_s
from app.stages.schedule import splits
from app.state import Sequence, Tree, Work
from app.store.protocol import Snapshot
from app.target import Target

log = logging.getLogger(__name__)
MIN_WAIT_S = 0.03  # a tree is waited for at least so long,
WAIT_FACTOR = 3.0  # and otherwise this many times what drafting usually takes, within the policy
ASK_AFTER_STEPS = 128  # without any draft: then one is asked for, whatever it is believed to cost
QUIET_AFTER_STEPS = 8  # without any draft, among as many sequences: from then on what pays is asked
QUIET_STEPS = 4  # only every so many steps; expectations change slowly when nobody drafts, and asking takes time


RunAhead = Literal["auto", "on", "off"]


@dataclass(slots=True)
class _Sent:
    """A job under way: for measuring how long drafts take. A probe, which nobody waits for, says nothing of that."""

    base: int
    at_s: float = 0.0  # monotonic
    batch: int = 0
    depth: int = 0
    unread: int = 0  # tokens of the batch that drafters had not seen
    patience_s: float = 0.0  # it was waited for so long at most: drafts that come later cost no more


class Running:
    """Bookkeeping of a verifier's sequences. Decides nothing about their text."""

    def __init__(
        self,
        memory: Target,
        costs: CostTable,
        vocab_size: int,
        mailbox: str,
        router: Router | None = None,
        run_ahead: RunAhead = "auto",
        clock: Clock = SYSTEM,
    ) -> None:
        self.sequences: dict[str, Sequence] = {}
        self.suspects: set[str] = set()
        self.expectations = Expectations()
        self.costs = costs
        self.draft_costs = DraftCosts()
        self.model_costs = DraftCosts(0.0)  # of that, what models took by their node's own clock
        self.crew = Crew()
        self.router = router or Router()
        self.is_together = True  # do the sequences go in one batch, or one half while the other half drafts?
        self.prompt_tokens = self.reused_tokens = 0  # read so far, and those of them that others had computed
        self._silent_steps = 0
        self._silent_crowd = 0  # sequences when it was last looked at what pays
        self._memory = memory
        self._vocab_size = vocab_size
        self._errands = Errands(mailbox)
        self._run_ahead = run_ahead
        self._clock = clock
        self._sent: dict[str, _Sent] = {}

    def start(self, snapshot: Snapshot) -> None:
        """Run a request from what is committed of it. One that was taken from a dead verifier runs alone at first."""
        record = snapshot.record
        tokens = [*record.prompt_ids, *snapshot.tokens]
        self.prompt_tokens += len(tokens)
        self.sequences[record.id] = Sequence(record, tokens, stats=snapshot.stats)
        if snapshot.strikes:
            self.suspects.add(record.id)

    def stop(self, request_id: str) -> Sequence | None:
        """Forget a sequence and give its memory back."""
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._memory.release(sequence)
        self.suspects.discard(request_id)
        self.expectations.forget(request_id)
        self._sent.pop(request_id, None)
        self._errands.forget(request_id)
        self.router.forget(request_id)
        return sequence

    def report(self) -> dict[str, int | dict[str, int]]:
        """What a verifier tells of itself: its sequences, its cache, how many prompt tokens it did not compute, and
        which drafters it chose."""
        return {
            "sequences": len(self.sequences),
            "cache_tokens": self._memory.capacity_tokens,
            "cache_tokens_free": self._memory.free_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_reused": self.reused_tokens,
            "asked_rounds": dict(self.router.asked_rounds),
        }

    def adopt_prefixes(self, sequences: Iterable[Sequence]) -> None:
        """Prompts that begin like what others have computed start from there."""
        for sequence in sequences:
            self.reused_tokens += self._memory.adopt(sequence)

    def reserve(self, works: list[Work]) -> list[Work]:
        """Those of the works that get memory. Short of it, trees go first, then the youngest sequences' caches.

        Memory goes by age, so the oldest sequence always gets on, and no two take each other's cache in turn.
        """
        kept: set[str] = set()
        for work in sorted(works, key=lambda work: _age(work.sequence)):
            if work.sequence.cached == work.start and self._try_reserve(work):  # else it lost its cache to an older one
                kept.add(work.sequence.record.id)
        return [work for work in works if work.sequence.record.id in kept]

    def offer(self, message: TreeMessage) -> None:
        """Take a tree in, if it is for a sequence's present length and well formed; learn from one that is late."""
        sent = self._sent.get(message.request_id)
        is_answer = sent is not None and sent.base == message.base
        if sent and is_answer:
            took_s = min(sent.patience_s, self._clock.monotonic() - sent.at_s)
            if not message.spared:  # what it takes where no model is run says nothing of what models will take
                self.draft_costs.observe(sent.batch, sent.depth, took_s, sent.unread)
            if 0.0 < message.models_s <= took_s:  # not trusted
                self.model_costs.observe(sent.batch, sent.depth, message.models_s, sent.unread)
            del self._sent[message.request_id]
        sequence = self.sequences.get(message.request_id)
        tree = tree_of(message, self._vocab_size)
        if sequence is None or tree is None:
            return
        if message.base == len(sequence.tokens):
            sequence.tree = tree
        elif is_answer and message.base < len(sequence.tokens):  # too late to be verified, but what came is known
            self.learn(sequence, tree, sequence.tokens[message.base :])

    def learn(self, sequence: Sequence, tree: Tree, committed: Listed[int]) -> None:
        """What `committed`, the tokens after the tree's root, says about its drafts and who made them."""
        record = sequence.record
        self.expectations.of(record.id, record.tenant).learn(tree, committed)
        self.router.learn(record.id, tree, committed, tree.confidence)

    def ask(self, sequences: list[Sequence], policy: Policy) -> list[DraftJob]:
        """Ask for as many draft tokens as pay (design D5); sequences that get none go on at once."""
        if self._is_quiet(sequences):
            return []
        limits = [self.limit(sequence, policy) for sequence in sequences]
        if not any(limits):
            return []
        candidates = [self._candidate(s, policy, limit) for s, limit in zip(sequences, limits, strict=True)]
        draft_s = self.draft_costs.seconds(len(sequences), max(limits))
        self.is_together = not splits(self.costs, len(self.sequences), draft_s)
        others = 0 if self.is_together else len(self.sequences) - len(sequences)
        self._silent_steps, self._silent_crowd = self._silent_steps + 1, len(sequences)
        depths = ask(
            candidates,
            self.costs,
            self.draft_costs,
            busy_s=self.costs.seconds(others) if others else 0.0,
            share=self.crew.share,
            must_ask=self._silent_steps > ASK_AFTER_STEPS,
        )
        probes = probe(candidates, depths, self.costs, self.draft_costs, self.crew.share)
        log.debug("asking for %s", depths)
        if any(depths):
            self._silent_steps = 0
        for candidate, depth, is_probe in zip(candidates, depths, probes, strict=True):
            candidate.expectation.asked(depth or int(is_probe), is_probe)
        worth = worth_s(candidates, depths, self.costs) + (self.costs.seconds(others) if others else 0.0)
        return self.jobs(sequences, depths, policy, probes, worth)

    def limit(self, sequence: Sequence, policy: Policy) -> int:
        """The most draft tokens the sequence may ask for: its own and the policy's bound, and the room it has left."""
        wish = sequence.record.speculation
        if not wish.enabled or not self.crew.allowed(wish.drafters):
            return 0
        own = policy.max_draft_tokens if wish.max_draft_tokens is None else wish.max_draft_tokens
        return max(0, min(own, policy.max_draft_tokens, sequence.record.max_tokens - sequence.generated - 1))

    def jobs(
        self,
        sequences: list[Sequence],
        depths: list[int],
        policy: Policy,
        probes: Iterable[bool] = (),
        worth: float = inf,
    ) -> list[DraftJob]:
        """Draft jobs for the sequences that ask for any; from now on they wait for their tree, within bounds: of the
        policy, of what is usual, and once that has passed no longer than the trees are worth, in seconds.

        A probe is a job for one token that nobody waits for.
        """
        asking = [(s, depth, self._route(s, policy)) for s, depth in zip(sequences, depths, strict=True) if depth]
        deepest = max((depth for _, depth, _ in asking), default=0)
        unread = sum(self._unread(sequence, route) for sequence, _, route in asking)
        usual_s = self.draft_costs.seconds(len(asking), deepest) + self.draft_costs.read_s(unread)
        wait_s = min(policy.draft_wait_s, max(MIN_WAIT_S, WAIT_FACTOR * usual_s), usual_s + worth)
        due_s = self._clock.time() + wait_s
        for sequence, _, _ in asking:
            sequence.due_s = due_s
            self._sent[sequence.record.id] = _Sent(
                len(sequence.tokens), self._clock.monotonic(), len(asking), deepest, unread, wait_s
            )
        probing = [sequence for sequence, is_probe in zip(sequences, probes, strict=False) if is_probe]
        for sequence in probing:
            self._sent[sequence.record.id] = _Sent(len(sequence.tokens))
        asking += [(sequence, 1, self._route(sequence, policy)) for sequence in probing]
        for sequence, _, route in asking:
            self.router.asked(sequence.record, route)
        return [
            job
            for sequence, depth, route in asking
            for job in self._errands.jobs(
                sequence,
                route,
                depth,
                due_s,
                readers=self.crew.readers,
                run_ahead=self._may_run_ahead,
                enough=self._enough(sequence, depth, len(asking)),
            )
        ]

    def farewell(self, sequence: Sequence) -> list[DraftJob]:
        """Tell those who followed an ended sequence what came last."""
        return self._errands.farewell(sequence, self.crew.mailboxes())

    def _is_quiet(self, sequences: list[Sequence]) -> bool:
        """Can one go on without drafts, without looking whether they would pay? Then another silent step is noted."""
        silent = self._silent_steps
        if silent < QUIET_AFTER_STEPS or silent % QUIET_STEPS == 0 or self._silent_crowd != len(sequences):
            return False
        self._silent_steps += 1
        for sequence in sequences:
            self.expectations.of(sequence.record.id, sequence.record.tenant).asked(0)
        return True

    def _candidate(self, sequence: Sequence, policy: Policy, limit: int) -> Candidate:
        record = sequence.record
        return Candidate(
            self.expectations.of(record.id, record.tenant),
            limit,
            self.draft_costs.read_s(self._unread(sequence, self._route(sequence, policy))) if limit else 0.0,
            record.max_tokens - sequence.generated,
        )

    def _enough(self, sequence: Sequence, depth: int, batch: int) -> float:
        expectation = self.expectations.of(sequence.record.id, sequence.record.tenant)
        round_s = self.costs.seconds(batch * (1 + depth)) + self.draft_costs.seconds(batch, depth)
        model_s = self.model_costs.seconds(batch, depth) if batch else 0.0
        return enough(sum(expectation.survival(depth)), round_s, model_s)

    @property
    def _may_run_ahead(self) -> bool:
        return self._run_ahead == "on" or (self._run_ahead == "auto" and self.crew.share == 0.0)

    def _route(self, sequence: Sequence, policy: Policy) -> Route:
        """Whom the sequence would ask now."""
        record, crew = sequence.record, self.crew
        depth = self.limit(sequence, policy)

        def price(mailbox: str) -> float:
            """Of asking there, in tokens of plain decoding: what waits there comes first, and what is unread."""
            waiting_s = crew.waiting.get(mailbox, 0) * self.draft_costs.seconds(1, depth)
            read_s = self.draft_costs.read_s(self._errands.unread(sequence, mailbox))
            rounds = max(1, min(HORIZON_TOKENS, record.max_tokens - sequence.generated) // 2)
            return (waiting_s + read_s / rounds) / self.costs.seconds(1)

        return self.router.route(record, len(sequence.tokens), crew, depth, policy.drafters_per_sequence, price)

    def _unread(self, sequence: Sequence, route: Route) -> int:
        """Tokens that somebody who will be asked has not been sent."""
        return max((self._errands.unread(sequence, mailbox) for mailbox in route.homes.values()), default=0)

    def _try_reserve(self, work: Work) -> bool:
        while not self._memory.try_reserve(work):
            younger = [s for s in self.sequences.values() if s.pages and _age(s) > _age(work.sequence)]
            if len(work.tree):
                work.tree = Tree()
            elif younger:
                self._memory.release(max(younger, key=_age))  # its prefix will be computed again
            else:
                return False
        return True


def _age(sequence: Sequence) -> tuple[float, str]:
    """Sorts the oldest first."""
    return sequence.record.created_s, sequence.record.id
