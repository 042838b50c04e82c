"""The sequences a verifier runs: their memory, their drafts under way, who may draft for them."""

import logging
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import inf

from app.clock import SYSTEM, Clock
from app.engine.early_exit.controller import EarlyExitController
from app.engine.target import Target
from app.engine.text.stop_strings import StopWatch
from app.engine.text.tokenizer import Tokenizer
from app.estimates.draft_costs import DraftCosts
from app.estimates.step_costs import StepCosts
from app.messages import DraftJob, TreeMessage
from app.policy import Policy
from app.stages.length.baselines import BaselineController, length_policy, whole_chain
from app.stages.length.controller import LengthController
from app.stages.length.marginal import HORIZON_TOKENS, Candidate, skip_models_above
from app.stages.route.drafter_pool import DrafterPool
from app.stages.route.router import Route, Router
from app.state import BatchEntry, CachedSequence, Sequence, Tree
from app.store.protocol import Snapshot
from app.telemetry.verifier_metrics import VerifierMetrics
from app.verifier.dispatch import DraftDispatcher
from app.verifier.overlap import Overlap, frontier, goes_together, runs_ahead
from app.verifier.preemption import reserve
from app.verifier.stats import VerifierStats

log = logging.getLogger(__name__)
MIN_WAIT_S = 0.03  # a tree is waited for at least so long, within the policy


@dataclass(slots=True)
class _Sent:
    """A job under way: for measuring how long drafts take. A probe, which nobody waits for, says nothing of that."""

    base: int
    at_s: float = 0.0  # monotonic
    batch: int = 0
    depth: int = 0
    unread: int = 0  # tokens of the batch that drafters had not seen
    patience_s: float = 0.0  # it was waited for so long at most: drafts that come later cost no more
    is_model_free: bool = False  # no model was asked
    deciding_s: float = 0.0  # what finding the depth took: a part of what drafts cost


class Running:
    """Bookkeeping of a verifier's sequences. Decides nothing about their text."""

    def __init__(
        self,
        memory: Target,
        costs: StepCosts,
        vocab_size: int,
        mailbox: str,
        router: Router | None = None,
        overlap: Overlap = "auto",
        clock: Clock = SYSTEM,
        reader: Tokenizer | None = None,  # None: no request has stop strings or a form to keep
        lengths: str = "marginal",
    ) -> None:
        self.sequences: dict[str, Sequence] = {}
        self.suspects: set[str] = set()
        self.lengths = LengthController()
        self.stats = VerifierStats()
        self.costs = costs
        self.draft_costs = self.lengths.with_models.costs
        self.model_costs = DraftCosts(0.0)  # of that, what models took by their node's own clock
        self.pool = DrafterPool()
        self.router = router or Router()
        self.metrics = VerifierMetrics()  # keeps nothing; a worker puts its own here
        self.pruning = EarlyExitController()
        self.is_together = True  # do the sequences go in one batch, or one half while the other half drafts?
        self.prompt_tokens = self.reused_tokens = 0  # read so far, and those of them that others had computed
        self._memory = memory
        self._vocab_size = vocab_size
        self._reader = reader
        self._dispatcher = DraftDispatcher(mailbox)
        self._overlap = overlap
        self._clock = clock
        self._usual_s = 0.0  # what the drafts that were asked for last usually take
        self._deciding_s = 0.0  # what finding the present depths took
        rule = length_policy(lengths)
        self._lengths = BaselineController(rule) if rule else None
        self._sent: dict[str, _Sent] = {}
        self._model_free: set[str] = set()  # sequences whose last drafts were asked of tables alone

    def start(self, snapshot: Snapshot) -> None:
        """Run a request from what is committed of it. One that was taken from a dead verifier runs alone at first."""
        record = snapshot.record
        tokens = [*record.prompt_ids, *snapshot.tokens]
        self.prompt_tokens += len(tokens)
        self.metrics.record_adopted(record, is_new=not snapshot.tokens)
        reader = self._reader
        stops = StopWatch(reader, record.stop) if reader is not None and record.stop else None
        grammar = None
        if reader is not None and record.json_schema is not None:
            grammar = reader.grammars.state(record.json_schema)
        kv = CachedSequence.of(record, tokens)
        self.sequences[record.id] = Sequence(record, kv, snapshot.stats, stops, grammar)
        if snapshot.strikes:
            self.suspects.add(record.id)

    def stop(self, request_id: str) -> Sequence | None:
        """Forget a sequence and give its memory back."""
        sequence = self.sequences.pop(request_id, None)
        if sequence is not None:
            self._memory.release(sequence.kv)
        self.suspects.discard(request_id)
        self.lengths.remove(request_id)
        self._model_free.discard(request_id)
        self._sent.pop(request_id, None)
        self._dispatcher.remove(request_id)
        self.router.remove(request_id)
        return sequence

    def report(self) -> dict[str, object]:
        """What a verifier tells of itself: its sequences, its cache, how many prompt tokens it did not compute, how
        many draft tokens it dropped on the way of those looked at there, which drafters it chose, and its load."""
        return {
            "sequences": len(self.sequences),
            "cache_tokens": self._memory.capacity_tokens,
            "cache_tokens_free": self._memory.free_tokens,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_reused": self.reused_tokens,
            "nodes_looked_at": self.pruning.looked_at,
            "nodes_pruned": self.pruning.dropped,
            "asked_rounds": dict(self.router.asked_rounds),
            "load": self.stats.load([*self.sequences.values()], self.costs).model_dump(mode="json"),
        }

    def adopt_prefixes(self, sequences: Iterable[Sequence]) -> None:
        """Prompts that begin like what others have computed start from there."""
        for sequence in sequences:
            reused = self._memory.adopt(sequence.kv)
            self.reused_tokens += reused
            self.metrics.record_reused(reused)

    def reserve(self, works: list[BatchEntry]) -> list[BatchEntry]:
        """Those of the works that get memory."""
        return reserve(works, self._memory, self.sequences)

    def receive(self, message: TreeMessage) -> None:
        """Take a tree in, if it is for a sequence's present length and well formed; learn from one that is late."""
        sent = self._sent.get(message.request_id)
        is_answer = sent is not None and sent.base == message.base
        if sent and is_answer:
            came_s = self._clock.monotonic() - sent.at_s
            took_s = min(sent.patience_s, came_s)
            if sent.batch:
                self.stats.record_wait(came_s)
                self.metrics.record_tree(took_s)
            costs_s = took_s + sent.deciding_s
            self.lengths.update_costs(
                sent.batch, sent.depth, costs_s, sent.unread, is_lean=sent.is_model_free, spared=message.skipped
            )
            if 0.0 < message.models_s <= took_s:  # not trusted
                self.model_costs.update(sent.batch, sent.depth, message.models_s, sent.unread)
            del self._sent[message.request_id]
        sequence = self.sequences.get(message.request_id)
        tree = Tree.from_message(message, self._vocab_size)
        if sequence is None or tree is None:
            return
        if message.base == len(sequence.tokens):
            sequence.tree = whole_chain(tree) if self._lengths else tree
        elif is_answer and message.base < len(sequence.tokens):  # too late to be verified, but what came is known
            self.update(sequence, tree, sequence.tokens[message.base :])

    def update(self, sequence: Sequence, tree: Tree, committed: Listed[int]) -> None:
        """What `committed`, the tokens after the tree's root, says about its drafts and who made them."""
        record = sequence.record
        self.lengths.update(record, tree, committed, self.pool.model_free, is_lean=record.id in self._model_free)
        self.router.update(record.id, tree, committed, tree.confidence)

    def request_drafts(self, sequences: list[Sequence], policy: Policy) -> list[DraftJob]:
        """Ask for as many draft tokens as pay (design D5); sequences that get none go on at once."""
        began_s, self._deciding_s = self._clock.perf_counter(), 0.0
        limits = [self.limit(sequence, policy) for sequence in sequences]
        if not any(limits) or (not policy.min_draft_tokens and self.lengths.is_quiet([s.record for s in sequences])):
            return []
        full = [self._candidate(s, policy, limit) for s, limit in zip(sequences, limits, strict=True)]
        if self._lengths is not None:
            now_s, lengths = self._clock.monotonic(), {s.record.id: len(s.tokens) for s in sequences}
            depths = self._lengths.decide(full, lengths, self.costs, self.draft_costs, now_s)
            return self.jobs(sequences, depths, policy)
        has_both = self.pool.model_free and self.pool.models
        lean = [self._model_free_candidate(s, c) for s, c in zip(sequences, full, strict=True)] if has_both else None
        self.is_together = goes_together(self._overlap, self.costs, len(self.sequences), self._usual_s)
        others = 0 if self.is_together else len(self.sequences) - len(sequences)
        busy_s = self.costs.seconds(others) if others else 0.0
        budget, least = policy.verify_budget, policy.min_draft_tokens
        found = self.lengths.decide(full, lean, self.costs, busy_s, self.pool.core_share, budget, least)
        depths, self._deciding_s = found.depths, self._clock.perf_counter() - began_s
        if len(sequences) == 1 and depths[0] and (found.is_model_free or not self.pool.models):
            depths = limits  # what tables draft for one costs next to nothing, and says itself what of it pays
        depths = [frontier(self._overlap, depth) for depth in depths]
        return self.jobs(
            sequences, depths, policy, found.probes, found.worth_s + busy_s, is_model_free=found.is_model_free
        )

    def limit(self, sequence: Sequence, policy: Policy) -> int:
        """The most draft tokens the sequence may ask for: its own and the policy's bound, and the room it has left."""
        wish = sequence.record.speculation
        if not wish.enabled or not self.pool.allowed(wish.drafters):
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
        *,
        is_model_free: bool = False,
    ) -> list[DraftJob]:
        """Draft jobs for the sequences that ask for any; from now on they wait for their tree, within bounds: of the
        policy, of what is usual, and once that has passed no longer than the trees are worth, in seconds.

        A probe is a job for one token that nobody waits for. `is_lean`: no model is asked.
        """

        def route_of(sequence: Sequence) -> Route:
            route = self._route(sequence, policy)
            return route.without_models() if is_model_free else route

        asking = [(s, depth, route_of(s)) for s, depth in zip(sequences, depths, strict=True) if depth]
        deepest = max((depth for _, depth, _ in asking), default=0)
        unread = sum(self._unread(sequence, route) for sequence, _, route in asking)
        costs = (self.lengths.model_free if is_model_free else self.lengths.with_models).costs
        self._usual_s = costs.seconds(len(asking), deepest)
        usual_s = self._usual_s + costs.read_s(unread)
        wait_s = min(policy.draft_wait_s, max(MIN_WAIT_S, policy.draft_wait_factor * usual_s), usual_s + worth)
        due_s, now_s = self._clock.time() + wait_s, self._clock.monotonic()
        for sequence, _, _ in asking:
            sequence.due_s = due_s
            sent = _Sent(
                len(sequence.tokens), now_s, len(asking), deepest, unread, wait_s, is_model_free, self._deciding_s
            )
            self._sent[sequence.record.id] = sent
        probing = [sequence for sequence, is_probe in zip(sequences, probes, strict=False) if is_probe]
        for sequence in probing:
            self._sent[sequence.record.id] = _Sent(len(sequence.tokens))
        asking += [(sequence, 1, route_of(sequence)) for sequence in probing]
        for sequence, _, route in asking:
            self.router.record_asked(sequence.record, route)
            self.metrics.record_asked(route.drafters)
            (self._model_free.add if is_model_free else self._model_free.discard)(sequence.record.id)
        return [
            job
            for sequence, depth, route in asking
            for job in self._dispatcher.jobs(
                sequence,
                route,
                depth,
                due_s,
                readers=self.pool.readers,
                run_ahead=runs_ahead(self._overlap, self.pool.core_share),
                skip_models_above=self._skip_models_above(sequence, depth, len(asking)),
            )
        ]

    def final_jobs(self, sequence: Sequence) -> list[DraftJob]:
        """Tell those who followed an ended sequence what came last."""
        return self._dispatcher.final_jobs(sequence, self.pool.mailboxes())

    def _candidate(self, sequence: Sequence, policy: Policy, limit: int) -> Candidate:
        record = sequence.record
        return Candidate(
            self.lengths.with_models.of(record),
            limit,
            self.draft_costs.read_s(self._unread(sequence, self._route(sequence, policy))) if limit else 0.0,
            record.max_tokens - sequence.generated,
            sequence.cached,
        )

    def _model_free_candidate(self, sequence: Sequence, full: Candidate) -> Candidate:
        record = sequence.record
        limit = full.limit if set(self.pool.allowed(record.speculation.drafters)) & set(self.pool.model_free) else 0
        return Candidate(self.lengths.model_free.of(record), limit, 0.0, full.remaining, full.context)

    def _skip_models_above(self, sequence: Sequence, depth: int, batch: int) -> float:
        expectation = self.lengths.with_models.of(sequence.record)
        round_s = self.costs.seconds(batch * (1 + depth)) + self.draft_costs.seconds(batch, depth)
        model_s = self.model_costs.seconds(batch, depth) if batch else 0.0
        return skip_models_above(sum(expectation.survival(depth)), round_s, model_s)

    def _route(self, sequence: Sequence, policy: Policy) -> Route:
        """Whom the sequence would ask now."""
        record, pool = sequence.record, self.pool
        depth = self.limit(sequence, policy)

        def price(mailbox: str) -> float:
            """Of asking there, in tokens of plain decoding: what waits there comes first, and what is unread."""
            waiting_s = pool.waiting.get(mailbox, 0) * self.draft_costs.seconds(1, depth)
            read_s = self.draft_costs.read_s(self._dispatcher.unread(sequence, mailbox))
            rounds = max(1, min(HORIZON_TOKENS, record.max_tokens - sequence.generated) // 2)
            return (waiting_s + read_s / rounds) / self.costs.seconds(1)

        return self.router.route(record, len(sequence.tokens), pool, depth, policy.drafters_per_sequence, price)

    def _unread(self, sequence: Sequence, route: Route) -> int:
        """Tokens that somebody who will be asked has not been sent."""
        return max((self._dispatcher.unread(sequence, mailbox) for mailbox in route.homes.values()), default=0)
