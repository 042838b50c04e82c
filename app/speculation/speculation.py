"""Ask drafters for trees and receive them: routes, lengths, and the estimates that they rest on.

The only writer of a sequence's `tree`, and with `app.speculation.draft_waits` of its `due_s`.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from app.clock import SYSTEM, Clock
from app.messages import LEAST_SURVIVAL, DraftJob, TreeMessage
from app.placement.interference import Interference
from app.placement.splits import FixedSplits, Split, Splits
from app.policy import Policy
from app.scheduler.compose import TAIL_TOKENS
from app.scheduler.prefill import prefill_s
from app.speculation.acceptance import AcceptanceEstimate
from app.speculation.draft_modes import DraftMode
from app.speculation.draft_waits import Asked, DraftWaits
from app.speculation.drafter_pool import DrafterPool
from app.speculation.host_costs import HostCosts
from app.speculation.jobs import DraftDispatcher
from app.speculation.length_policy import DraftBatch, LengthPlanner
from app.speculation.marginal import Candidate, rounds_left, skip_models_above
from app.speculation.overlap import Overlap, Round
from app.speculation.pending_drafts import PendingDrafts
from app.speculation.read_tokens import ReadTokens
from app.speculation.routing import Route, Router
from app.state import Sequence, Tree
from app.verifier.measured_target import MeasuredTarget
from app.verifier.sequences import Sequences
from app.verifier.stats import VerifierStats

MODEL_FREE_TOKENS = 8  # that model-free drafters may draft, however few the policy allows, if any


@dataclass(frozen=True, slots=True)
class DraftStrategies:
    """Hold the rules by which a verifier asks for drafts: lengths, drafters, overlap.

    `sends_states`: jobs carry the target's hidden state to the drafters that read it. `shares_tokens`:
    drafters on several nodes guess each token together. `drafts_whole`: models draft all that is asked for,
    however unlikely it is. `splits`: the ways to divide the machine.
    """

    lengths: LengthPlanner
    router: Router
    overlap: Overlap
    sends_states: bool = True
    shares_tokens: bool = False
    drafts_whole: bool = False
    splits: Splits = field(default_factory=FixedSplits)


class Speculation:
    """Keep the drafts of a verifier's sequences under way."""

    def __init__(
        self,
        measured: MeasuredTarget,
        sequences: Sequences,
        stats: VerifierStats,
        strategies: DraftStrategies,
        mailbox: str,
        clock: Clock = SYSTEM,
    ) -> None:
        """Speculate for `sequences` of the measured target; trees come to `mailbox`."""
        self.sequences: Final = sequences
        self.stats: Final = stats
        self.lengths: Final = strategies.lengths
        self.router: Final = strategies.router
        self._overlap = strategies.overlap
        self._splits = strategies.splits
        self._sends_states = strategies.sends_states
        self._drafts_whole = strategies.drafts_whole
        self._costs = measured.costs
        self._vocab_size = measured.vocab_size
        self._dispatcher = DraftDispatcher(mailbox, shares_tokens=strategies.shares_tokens)
        self._read = ReadTokens()
        self._clock = clock
        self._draft_costs = self.lengths.modes.with_models.costs
        self._pool = DrafterPool()
        self._is_together = True
        self._requesting_s = 0.0  # what requesting the present drafts took in all
        self._host_costs = HostCosts()
        self.pending: Final = PendingDrafts(self.lengths.modes, self._host_costs, stats, clock)
        self._waits = DraftWaits(self.lengths.modes, self.pending, self._read, clock)
        self._model_free: set[str] = set()  # sequences whose last drafts came from no model
        self._asked_models: set[str] = set()  # sequences for whose present round a model was asked

    @property
    def pool(self) -> DrafterPool:
        """Return the drafters that are asked."""
        return self._pool

    def follow(self, pool: DrafterPool) -> None:
        """Ask these drafters from now on. For any thread: one reference is swapped."""
        self._pool = pool

    @property
    def split(self) -> Split:
        """Return how the machine is divided now. For any thread."""
        return self._splits.all[self._waits.split]

    @property
    def is_together(self) -> bool:
        """Tell whether the sequences go in one batch; else one half drafts meanwhile."""
        return self._is_together

    def receive(self, *messages: TreeMessage) -> None:
        """Take in trees that are for a sequence's present length and sound; learn from those that are late."""
        for message in messages:
            self._receive(message)
        self.pending.learn()

    def _receive(self, message: TreeMessage) -> None:
        if self._pool.models:
            self._read.record_answer(message)
        if self.pending.record_reading(message):
            return
        is_answer = self.pending.record_answer(message)
        sequence = self.sequences.find(message.request_id)
        tree = Tree.from_message(message, self._vocab_size)
        if sequence is None or tree is None:
            return
        if message.base == len(sequence.tokens):
            sequence.tree = self.lengths.trim(tree)
        elif is_answer and message.base < len(sequence.tokens):  # late, but its verdict is known
            self._update([(sequence, tree, sequence.tokens[message.base :])])

    def record_verdicts(self, verdicts: Iterable[tuple[Sequence, Listed[int]]]) -> None:
        """Learn from what each sequence is about to commit after its tree's root; it waits for nothing any more."""
        later = with_models = 0
        asked_models = self._asked_models
        learnt: list[tuple[Sequence, Tree, Listed[int]]] = []
        for sequence, committed in verdicts:
            tree = sequence.tree
            if sequence.generated:
                later += 1
                with_models += sequence.record.id in asked_models and not (tree and tree.skipped)
            if asked_models:
                asked_models.discard(sequence.record.id)
            if tree is not None:
                learnt.append((sequence, tree, committed))
            sequence.tree, sequence.due_s = None, 0.0
        self.stats.record_later_rounds(later, with_models)
        self._update(learnt)

    def limit_waits(self, sequences: Iterable[Sequence], latest_s: float) -> None:
        """Bring due times after `latest_s` forward to it: the policy or the clock may have changed since."""
        for sequence in sequences:
            sequence.due_s = min(sequence.due_s, latest_s)

    def remove(self, request_id: str) -> None:
        """Remove all that is known of an ended sequence's drafts."""
        self.lengths.modes.remove(request_id)
        self.router.remove(request_id)
        self._model_free.discard(request_id)
        self._asked_models.discard(request_id)
        self.pending.remove(request_id)
        self._read.remove(request_id)
        self._dispatcher.remove(request_id)

    def expect(self, split: int, measured: Interference) -> None:
        """Expect steps and drafts to be slower by this much under a split, until some are seen there."""
        self._costs.expect(split, measured.verify_slowdown)
        self.pending.expect_split(split, measured.draft_slowdown)

    def request_drafts(self, sequences: list[Sequence], policy: Policy) -> list[DraftJob]:
        """Ask for as many draft tokens as pay (design D5); sequences that get none go on at once."""
        began_s = self._clock.perf_counter()
        jobs = self._request(sequences, policy, began_s)
        self._requesting_s = self._clock.perf_counter() - began_s
        return jobs

    def record_step(self, launched_s: float, expected_s: float) -> None:
        """Record a step of `expected_s` seconds (monotonic): drafters on the same cores are slower beside it."""
        if self._is_together and self._pool.core_share:
            self.pending.record_step(launched_s, expected_s)

    def record_host(self, sequences: int, trees: int, seconds: float) -> None:
        """Learn that a step took `seconds` beside the target's, asking for drafts included."""
        self._host_costs.update(sequences, trees, max(0.0, seconds - self._requesting_s))

    def _request(self, sequences: list[Sequence], policy: Policy, began_s: float) -> list[DraftJob]:
        self._waits.deciding_s = 0.0
        limits = [self.limit(sequence, policy) for sequence in sequences]
        is_forced = policy.min_draft_tokens > 0
        if not any(limits) or (not is_forced and self.lengths.is_quiet([s.record for s in sequences])):
            return []
        batch = self._batch(sequences, limits, policy)
        found = self.lengths.plan(batch)
        if not any(found.depths):
            self._waits.usual_depth = 0  # nothing to hide: the sequences go together
        if found.split != self._waits.split:
            self._divide(found.split)
        if found.is_priced:
            self._waits.deciding_s = self._clock.perf_counter() - began_s
        depths = found.depths if found.is_model_free else self._chunked(batch.candidates, found.depths)
        worth_s = found.worth_s + batch.busy_s + batch.prompts_s
        return self.jobs(
            sequences,
            depths,
            policy,
            found.probes,
            worth_s,
            least_survival=found.least_survival,
            is_model_free=found.is_model_free,
        )

    def _divide(self, split: int) -> None:
        """Divide the machine in another way from now on, and learn what steps and drafts cost then by themselves."""
        self._waits.split = split
        self._splits.use(split)
        self._costs.use(split)
        self.pending.use(split)

    def _chunked(self, candidates: Listed[Candidate], depths: list[int]) -> list[int]:
        """Cut drafts to the chunk that is waited for; drafters run ahead with the rest, models alone do."""
        if not self._pool.models:
            return depths
        asked = [(c.expectation, depth) for c, depth in zip(candidates, depths, strict=True) if depth]
        size = self._overlap.chunk(self._round(asked), self._pool.core_share) if asked else None
        return depths if size is None else [min(size, depth) for depth in depths]

    def _round(self, asked: Listed[tuple[AcceptanceEstimate, int]]) -> Round:
        """Describe drafts of so many tokens each for the overlap."""
        drafting = sum(depth > 0 for _, depth in asked)

        def drafting_s(tokens: int) -> float:
            return self.pending.hop_s + self.pending.drafting_s(drafting, tokens)

        return Round([expectation.survival(depth + 1) for expectation, depth in asked], self._costs, drafting_s)

    def limit(self, sequence: Sequence, policy: Policy, *, is_model_free: bool = False) -> int:
        """Return the most draft tokens the sequence may ask for, by its own and the policy's bound and its room.

        The policy's bound falls where drafter nodes are behind: what no model drafts it bounds less.
        """
        record = sequence.record
        wish = record.speculation
        if not wish.enabled or not self._pool.allows_any(wish.drafters):
            return 0
        most = policy.max_draft_tokens
        if is_model_free and most:
            most = max(most, MODEL_FREE_TOKENS)
        own = most if wish.max_draft_tokens is None else wish.max_draft_tokens
        return max(0, min(own, most, record.max_tokens - sequence.generated - 1))

    def jobs(
        self,
        sequences: list[Sequence],
        depths: list[int],
        policy: Policy,
        probes: Iterable[bool] = (),
        worth_s: float = inf,
        *,
        least_survival: float = LEAST_SURVIVAL,
        is_model_free: bool = False,
    ) -> list[DraftJob]:
        """Make the jobs of the sequences that ask for tokens, and let these wait for their trees.

        They wait within the policy's bounds for as long as drafts usually take, and beyond that no
        longer than the trees are worth, `worth_s`. A probe is a job for one token without a wait;
        drafters have the policy's longest one for it. Where the models of a node must read for longer than
        the trees are worth, the others draft without them. A sequence that it is to read gets a job for one
        token there, whose answer says that all before it is read, and until then no other.
        Models go on from guesses of `least_survival`.
        """
        route_of = self._model_free_route if is_model_free or not self._pool.models else partial(self._route, policy)
        now_s = self._clock.monotonic()
        asked = [(s, depth, route_of(s)) for s, depth in zip(sequences, depths, strict=True) if depth]
        probed = [(s, 1, route_of(s)) for s, is_probe in zip(sequences, probes, strict=False) if is_probe]
        probed = [one for one in probed if not self._waits.is_awaited(one, now_s)]
        unread = self._waits.unread_by_home(asked, now_s)
        slow = self._waits.slow_homes(asked, unread, worth_s, now_s)
        slow.discard(self._pool.alone)  # this process's own is waited for in any case
        tabled: list[Asked] = []
        readings: list[Asked] = []
        if slow:
            at = [(s, route, home) for s, _, route in asked for home in sorted(slow) if s.record.id in unread[home]]
            readings = [(s, 1, route.only_at(home)) for s, route, home in at]
            readings = [one for one in readings if not self._waits.is_awaited(one, now_s)]
            left = [(s, depth, route.away_from(slow, self._pool)) for s, depth, route in asked]
            asked = [one for one in left if one[2].homes]
            tabled = [one for one in left if one[2].drafters and not one[2].homes]
            unread = {home: own for home, own in unread.items() if home not in slow}
        self._record_asked(asked, is_model_free=is_model_free)
        self._record_asked(probed, is_model_free=is_model_free)
        self._record_asked(tabled, is_model_free=True)
        due_of = (
            (tabled, self._waits.wait(tabled, {}, policy, worth_s, now_s, is_model_free=True)),
            (asked, self._waits.wait(asked, unread, policy, worth_s, now_s, is_model_free=is_model_free)),
            (probed, self._waits.probe(probed, policy, now_s, is_model_free=is_model_free)),
            (readings, self._waits.probe(readings, policy, now_s, is_reading=True)),
        )
        run_ahead = bool(asked) and not is_model_free and self._runs_ahead(asked)
        most: dict[str, int] = {}  # tokens to be read at some node, by request
        for own in unread.values():
            most.update({record_id: max(tokens, most.get(record_id, 0)) for record_id, tokens in own.items()})
        readers = self._pool.readers if self._sends_states else frozenset()
        if self._drafts_whole:
            least_survival = 0.0
        jobs: list[DraftJob] = []
        for some, due_s in due_of:
            for sequence, depth, route in some:
                # Models that run ahead have guessed already, and skipping them would leave nothing to go on from.
                may_skip = bool(route.homes) and some is not readings and not run_ahead
                jobs += self._dispatcher.jobs(
                    sequence,
                    route,
                    depth,
                    due_s,
                    readers=readers,
                    run_ahead=run_ahead,
                    least_survival=least_survival,
                    skip_models_above=self._skip_models_above(
                        sequence, depth, len(asked), most.get(sequence.record.id, 0)
                    )
                    if may_skip
                    else 1.0,
                )
        self.stats.metrics.record_asked([route.drafters for some, _ in due_of for _, _, route in some])
        return jobs

    def _record_asked(self, asked: Listed[Asked], *, is_model_free: bool) -> None:
        """Record who was asked for whom."""
        requests = [sequence.record.id for sequence, _, _ in asked]
        if is_model_free:
            self._model_free.update(requests)
        else:
            self._model_free.difference_update(requests)
        for sequence, _, route in asked:
            if route.is_choice:
                self.router.record_asked(sequence.record, route)
            if route.homes:
                self._asked_models.add(sequence.record.id)

    def _runs_ahead(self, asked: Listed[Asked]) -> bool:
        """Tell whether model drafters run ahead of the verdict on these drafts."""
        if not self._pool.models:
            return False
        expected = self.lengths.modes.with_models
        drafts = self._round([(expected.of(sequence.record), depth) for sequence, depth, _ in asked])
        return self._overlap.runs_ahead(drafts, self._pool.core_share)

    def final_jobs(self, sequence: Sequence) -> list[DraftJob]:
        """Make the jobs that bring the last tokens of an ended sequence to its replicas."""
        return self._dispatcher.final_jobs(sequence, self._pool.mailboxes())

    def _update(self, rounds: Listed[tuple[Sequence, Tree, Listed[int]]]) -> None:
        """Learn from trees and the tokens after their roots."""
        model_free = self._model_free
        self.lengths.modes.update(
            [(s.record, tree, committed, s.record.id in model_free) for s, tree, committed in rounds],
            self._pool.model_free,
        )
        if self.router.is_scoring:
            for sequence, tree, committed in rounds:
                self.router.update(sequence.record.id, tree, committed, tree.confidence)

    def _batch(self, sequences: list[Sequence], limits: list[int], policy: Policy) -> DraftBatch:
        """Describe the sequences for the length planner, and form groups where that pays."""
        pool = self._pool
        now_s = self._clock.monotonic()
        modes = self.lengths.modes
        reads_s = [0.0] * len(sequences)
        if pool.models:
            reads_s = [
                self._read_s(s, policy, now_s) if limit else 0.0 for s, limit in zip(sequences, limits, strict=True)
            ]
        full = self._candidates(modes.with_models, sequences, limits, reads_s)
        model_free = None
        if pool.model_free and pool.models:
            alone = [
                self.limit(s, policy, is_model_free=True) if self._model_free_route(s).drafters else 0
                for s in sequences
            ]
            model_free = self._candidates(modes.model_free, sequences, alone, [0.0] * len(sequences))
        self._is_together = self._overlap.goes_together(self._costs, len(self.sequences), self._waits.usual_s)
        others = len(self.sequences) - len(sequences)
        reads_prompts = others > 0 and self._is_together  # while these wait; else the other half is verified
        return DraftBatch(
            full,
            model_free,
            has_models=bool(pool.models) and any(pool.allows_models(s.record.speculation.drafters) for s in sequences),
            lengths={s.record.id: len(s.kv.tokens) for s in sequences},
            costs=self._costs,
            now_s=now_s,
            busy_s=self._costs.seconds(others) if others and not reads_prompts else 0.0,
            prompts_s=self._prompts_s(sequences, policy) if reads_prompts else 0.0,
            core_share=pool.core_share,
            together=self._together(len(sequences)) if others and not self._is_together else 1.0,
            least=policy.min_draft_tokens,
            load=len(self.sequences),
            ahead=partial(self._ahead, full) if pool.models and not (pool.core_share or others) else None,
        )

    def _ahead(self, candidates: Listed[Candidate]) -> tuple[int, float]:
        """Return the draft tokens to wait for while drafters run ahead, and the pace with them over plain decoding.

        0 and 1 where they would not, or nothing is known of what a guess takes.
        """
        if not self.lengths.modes.guessing.is_known or not any(c.limit for c in candidates):
            return 0, 1.0
        share = self._pool.core_share
        size = self._overlap.chunk(self._round([(c.expectation, c.limit) for c in candidates]), share)
        if size is None:
            return 0, 1.0
        chunks = self._round([(c.expectation, min(size, c.limit)) for c in candidates])
        if not self._overlap.runs_ahead(chunks, share):
            return 0, 1.0
        reading = self._costs.reading
        read_s = sum(c.read_s / c.horizon for c in candidates)
        read_s += reading.step_s((c.context, 1 + min(size, c.limit)) for c in candidates)
        plain_s = self._costs.seconds(len(candidates)) + reading.step_s((c.context, 1) for c in candidates)
        return size, plain_s / len(candidates) * chunks.pace_ahead(size, read_s)

    def _together(self, sequences: int) -> float:
        """Return the pace of decoding all sequences plainly in one step over that of so many of them apart."""
        everyone = len(self.sequences)
        return everyone / sequences * self._costs.seconds(sequences) / self._costs.seconds(everyone)

    def _prompts_s(self, sequences: list[Sequence], policy: Policy) -> float:
        """Return the seconds of the step of prompts alone that the verifier makes while these wait; 0 for none."""
        prompts = [sequence for sequence in self.sequences.oldest() if sequence.uncached > TAIL_TOKENS]
        return prefill_s(prompts, policy, self._costs, self._costs.seconds(len(sequences)))

    def _candidates(
        self, mode: DraftMode, sequences: list[Sequence], limits: list[int], reads_s: list[float]
    ) -> list[Candidate]:
        """Describe the sequences to the rules of draft lengths, as drafters of this mode see them."""
        of = mode.of
        return [
            Candidate(of(s.record), limit, read_s, s.record.max_tokens - s.generated, s.kv.cached)
            for s, limit, read_s in zip(sequences, limits, reads_s, strict=True)
        ]

    def _read_s(self, sequence: Sequence, policy: Policy, now_s: float) -> float:
        """Return what the sequence's drafters take to read what they have not seen of it."""
        record_id, length = sequence.record.id, len(sequence.tokens)
        homes = self._route(policy, sequence).homes.values()
        unread = max((self._read.unread(record_id, length, home, now_s) for home in homes), default=0)
        return self._draft_costs.read_s(unread)

    def _skip_models_above(self, sequence: Sequence, depth: int, batch: int, unread: int) -> float:
        if not batch:  # a probe of models
            return 1.0
        modes = self.lengths.modes
        full, model_free = (mode.of(sequence.record).survival(depth) for mode in (modes.with_models, modes.model_free))
        round_s = self._costs.seconds(batch * (1 + depth)) + self._draft_costs.seconds(batch, depth)
        costs = self.pending.model_costs
        # On the verifier's own cores each draft takes its part of them, whatever it adds to the round.
        model_s = max(costs.added_s(batch, depth), self._pool.core_share * costs.seconds(batch, depth) / batch)
        if unread:
            model_s += self._draft_costs.read_s(unread) / rounds_left(sequence.record.max_tokens - sequence.generated)
        return skip_models_above(full, model_free, round_s / batch, model_s)

    def _model_free_route(self, sequence: Sequence) -> Route:
        """Return the route of the sequence's rounds without models."""
        return self.router.model_free(sequence.record.speculation.drafters, self._pool)

    def _route(self, policy: Policy, sequence: Sequence) -> Route:
        """Route the sequence's next round, where there are models."""
        record, pool = sequence.record, self._pool
        known = self.router.known(record.id, len(sequence.tokens), pool)
        if known is not None:
            return known

        most = min(policy.drafters_per_sequence, self.lengths.drafters or policy.drafters_per_sequence)
        return self.router.route(record, len(sequence.tokens), pool, most)
