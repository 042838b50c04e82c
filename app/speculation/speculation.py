"""Ask drafters for trees and receive them. The only writer of a sequence's `tree` and `due_s`."""

from collections.abc import Callable, Iterable, Mapping, Set
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from app.clock import SYSTEM, Clock
from app.engine.step_costs import StepCosts
from app.messages import LEAST_SURVIVAL, DraftJob, TreeMessage
from app.placement.interference import Interference
from app.placement.splits import FixedSplits, Split, Splits
from app.policy import Policy
from app.round_observer import AskedDraft, RoundObserver, VerifiedStep
from app.speculation.draft_costs import DraftCosts, TableCosts
from app.speculation.draft_modes import DraftMode
from app.speculation.drafter_pool import DrafterPool
from app.speculation.guard import Way
from app.speculation.host_costs import HostCosts
from app.speculation.jobs import DraftDispatcher
from app.speculation.length_protocol import DraftBatch, LengthDecision, LengthPlanner
from app.speculation.marginal import Candidate, paid_s, tokens_of
from app.speculation.overlap import Overlap
from app.speculation.pending_drafts import Asked, PendingDraft, PendingDrafts
from app.speculation.plain_spell import PlainSpell
from app.speculation.routing import Route, Router
from app.speculation.row_price import Price, RowPrice
from app.state import NO_PROMPTS, Prompts, Sequence, Tree

MODEL_FREE_TOKENS = 8  # that model-free drafters may draft, however few the policy allows, if any


@dataclass(frozen=True, slots=True)
class DraftStrategies:
    """The rules by which a verifier asks for drafts."""

    lengths: LengthPlanner
    router: Router
    overlap: Overlap
    sends_states: bool = True  # jobs carry the target's hidden state to drafters that read it
    shares_tokens: bool = False  # drafters on several nodes guess each token together
    drafts_whole: bool = False  # models draft unlikely tokens, too
    most_nodes: Callable[[int], int] | None = None  # of a model's tree, by sequences; None: models draft paths
    stated_tokens: int = 0  # that models may draft, however few the policy allows, if any
    splits: Splits = field(default_factory=FixedSplits)


class Wanted(NamedTuple):
    drafts: list[Asked]  # that sequences wait for
    tabled: list[Asked]  # those of tables alone, whose nodes must read first
    readings: list[Asked]  # texts for nodes to read in spare time
    is_first: bool  # no last drafts of these sequences came in time: nodes could guess nothing ahead


class Speculation(RoundObserver):
    """Keep a verifier's drafts under way, and learn from verdicts what drafts bring."""

    def __init__(
        self,
        sequences: Mapping[str, Sequence],
        costs: StepCosts,
        vocab_size: int,
        strategies: DraftStrategies,
        mailbox: str,
        observers: Listed[RoundObserver] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        self.lengths: Final = strategies.lengths
        self.router: Final = strategies.router
        self.pending: Final = PendingDrafts(self.lengths.modes, clock)
        self._sequences = sequences
        self._observers = observers
        self._overlap = strategies.overlap
        self._splits = strategies.splits
        self._sends_states = strategies.sends_states
        self._stated_tokens = strategies.stated_tokens
        self._least_survival = 0.0 if strategies.drafts_whole else LEAST_SURVIVAL
        self._most_nodes = strategies.most_nodes
        self._row_price = RowPrice(costs)
        self._costs = costs
        self._draft_costs = self.lengths.modes.with_models.costs
        self._host_costs = HostCosts()
        self._vocab_size = vocab_size
        self._dispatcher = DraftDispatcher(mailbox, shares_tokens=strategies.shares_tokens)
        self._clock = clock
        self._pool = DrafterPool()
        self._is_together = True
        self._drafts_here = False
        self._plain_spell = PlainSpell()
        self._model_free: set[str] = set()  # sequences whose last drafts came from no model
        self._ahead: set[str] = set()  # and those whose last drafts by models came in time: the next are guessed ahead

    @property
    def pool(self) -> DrafterPool:
        return self._pool

    def follow(self, pool: DrafterPool) -> None:
        """Ask these drafters from now on. For any thread: one reference is swapped."""
        self._pool = pool

    @property
    def split(self) -> Split:
        """Return how the machine is divided. For any thread."""
        return self._splits.all[self._draft_costs.split]

    @property
    def is_together(self) -> bool:
        """Tell whether the sequences go in one batch; else one half drafts meanwhile."""
        return self._is_together

    @property
    def drafts_here(self) -> bool:
        """Tell whether models on the verifier's own cores were asked for the last drafts."""
        return self._drafts_here

    def receive(self, *messages: TreeMessage) -> None:
        """Take in sound trees for a sequence's present length; learn from late ones."""
        answers: list[tuple[TreeMessage, PendingDraft]] = []
        late: list[tuple[Sequence, Tree, Listed[int]]] = []
        for message in messages:
            job = self.pending.take(message)
            if job is not None:
                answers.append((message, job))
                if job.is_reading:
                    continue
            sequence = self._sequences.get(message.request_id)
            tree = Tree.from_message(message, self._vocab_size)
            if sequence is None or tree is None:
                continue
            if message.base == len(sequence.tokens):
                if message.reports:
                    self._ahead.add(message.request_id)
                sequence.tree = tree if self.lengths.is_tree else tree.chain()
            elif job is not None and message.base < len(sequence.tokens):
                late.append((sequence, tree, sequence.tokens[message.base :]))
        self._update(late)
        for batch in self.pending.learn(answers):
            for observer in self._observers:
                observer.on_trees(batch.answers, batch.came_s, batch.waited_s)

    def on_start(self, sequences: Iterable[Sequence], now_s: float) -> None:
        self.pending.record_launch()

    def on_verdict(self, step: VerifiedStep) -> None:
        """Update acceptance with the tokens about to be committed, and clear the trees."""
        if self._pool.models and self._most_nodes is not None:
            self._row_price.update(step.rounds, self._clock.time())
        self._update([(r.sequence, r.sequence.tree, r.tokens) for r in step.rounds if r.sequence.tree is not None])
        self._end_round(step)
        for r in step.rounds:
            r.sequence.tree, r.sequence.due_s = None, 0.0

    def on_failure(self) -> None:
        self.lengths.modes.guard.stop()

    def on_step(self, step: VerifiedStep, host_s: float) -> None:
        entries = step.entries
        if False not in [entry.final for entry in entries]:
            trees = [entry.tree.tokens for entry in entries]
            self._host_costs.update(len(entries), len(trees) - trees.count([]), host_s)

    def limit_waits(self, sequences: Iterable[Sequence], latest_s: float) -> None:
        """Bring later due times forward to `latest_s`: the policy or the clock may have changed."""
        for sequence in sequences:
            sequence.due_s = min(sequence.due_s, latest_s)

    def remove(self, request_id: str) -> None:
        self.lengths.modes.remove(request_id)
        self.router.remove(request_id)
        self.pending.remove(request_id)
        self._model_free.discard(request_id)
        self._ahead.discard(request_id)
        self._dispatcher.remove(request_id)

    def expect(self, split: int, measured: Interference) -> None:
        """Expect steps and drafts under a split to be slower by this much until some are seen."""
        self._costs.expect(split, measured.verify_slowdown)
        self._draft_costs.expect(split, measured.draft_slowdown)

    def request_drafts(
        self, sequences: list[Sequence], policy: Policy, prompts: Prompts = NO_PROMPTS
    ) -> list[DraftJob]:
        """Ask for as many draft tokens as pay (design D5); sequences that get none go on at once.

        `prompts`: what waits to be read. A plan that asks for none stands for a spell.
        """
        began_s, began_thread_s = self._clock.monotonic(), self._clock.thread_time()
        self._is_together = self._overlap.goes_together(self._costs, len(self._sequences), self.pending.usual_s)
        if self._plain_spell.lasts(began_s) and not policy.min_draft_tokens:
            expected_s = self._plain_spell.round_s(len(sequences))
            self.lengths.modes.guard.begin(Way.PLAIN, [s.record.id for s in sequences], expected_s, began_s)
            return []
        limits = [self.limit(sequence, policy) for sequence in sequences]
        if not any(limits):
            self.lengths.modes.guard.stop()
            self._ahead.clear()
            return []
        batch = self._batch(sequences, limits, policy, prompts)
        found = self.lengths.plan(batch)
        if not any(found.depths):
            self.pending.usual_depth = 0  # nothing to hide: the sequences go together
        if found.split != self._draft_costs.split:
            self._splits.use(found.split)
            self._costs.use(found.split)
            self._draft_costs.use(found.split)
        is_model_free = found.is_model_free or not batch.has_models
        depths, chunk = found.depths, self._overlap.chunk
        if chunk is not None and not is_model_free:
            depths = [min(chunk, depth) for depth in depths]
        if any(depths) and not is_model_free and self.router.count:
            self.router.count.decide(self._round_s(depths))
        worth_s = found.worth_s + (batch.busy_s + batch.prompts_s) * (1.0 - batch.core_share)
        wanted = self.ask(sequences, depths, policy, worth_s, is_model_free=is_model_free)
        jobs = self.jobs(wanted, policy, worth_s, is_model_free=is_model_free)
        if found.price is not None:
            expected_s, asked, way = 0.0, _asked_of(batch, found), _way(found, depths)
            ids = {s.record.id for s, _, _ in (*wanted.drafts, *wanted.tabled)}
            depths = [depth if s.record.id in ids else 0 for s, depth in zip(sequences, depths, strict=True)]
            reads_first = self.pending.most_unread(wanted.drafts) > 0
            if not reads_first and (way is not Way.MODELS or self._draft_costs.is_known):
                expected_s = found.price.round_s(asked, depths, self._costs)
            tokens = tokens_of(asked, depths) / len(depths)
            self.lengths.modes.guard.begin(
                way, batch.lengths, expected_s, batch.now_s, tokens=tokens, is_trial=found.is_trial
            )
            if way is Way.PLAIN:
                plan_s = self._clock.thread_time() - began_thread_s
                self._plain_spell.begin(len(sequences), expected_s, plan_s, self._clock.monotonic())
        return jobs

    def limit(self, sequence: Sequence, policy: Policy, *, is_model_free: bool = False) -> int:
        """Return the most draft tokens of the sequence, by its own and the policy's bound and its room.

        The policy's bound falls where drafter nodes are behind; model-free drafters may draft MODEL_FREE_TOKENS, and
        plans of stated lengths these.
        """
        record = sequence.record
        wish = record.speculation
        if not wish.enabled or not self._pool.allows_any(wish.drafters):
            return 0
        most = policy.max_draft_tokens
        if most:
            most = max(most, self._stated_tokens, MODEL_FREE_TOKENS if is_model_free else 0)
        own = most if wish.max_draft_tokens is None else wish.max_draft_tokens
        return max(0, min(own, most, record.max_tokens - sequence.generated - 1))

    def ask(
        self, sequences: list[Sequence], depths: list[int], policy: Policy, worth_s: float, *, is_model_free: bool
    ) -> Wanted:
        """Choose whom to ask for each sequence's tokens, and count on their answers.

        A sequence goes on without the nodes that must read its text first, for longer than `worth_s`; these read it in
        spare time.
        """
        route_of = self._model_free_route if is_model_free or not self._pool.models else partial(self._route, policy)
        asked = [(s, depth, route_of(s)) for s, depth in zip(sequences, depths, strict=True) if depth]
        unready = self.pending.unready(asked, worth_s, self._pool.alone)
        drafts, tabled, readings = asked, list[Asked](), list[Asked]()
        if unready:
            left = [
                (s, depth, route.away_from(homes, self._pool) if (homes := unready.get(s.record.id)) else route)
                for s, depth, route in asked
            ]
            drafts = [one for one in left if one[2].homes]
            tabled = [one for one in left if one[2].drafters and not one[2].homes]
            readings = self._readings(asked, unready)
        is_first = self._ahead.isdisjoint(s.record.id for s, _, _ in drafts)
        self._ahead.difference_update(s.record.id for s in sequences)
        return Wanted(drafts, tabled, readings, is_first)

    def jobs(self, wanted: Wanted, policy: Policy, worth_s: float, *, is_model_free: bool) -> list[DraftJob]:
        """Make the jobs for what is wanted, and let its sequences wait for their trees."""
        asked, tabled, readings, is_first = wanted
        runs_ahead = not is_model_free and bool(self._pool.models) and self._overlap.runs_ahead(self._pool.core_share)
        self._drafts_here = any(self._pool.is_here(home) for _, _, route in asked for home in route.homes.values())
        self._record_asked(asked, is_model_free=is_model_free)
        self._record_asked(tabled, is_model_free=True)
        is_first = is_first and runs_ahead
        due_of = (
            (tabled, self.pending.wait(tabled, policy, worth_s, is_model_free=True)),
            (asked, self.pending.wait(asked, policy, worth_s, is_model_free=is_model_free, is_first=is_first)),
            (readings, self.pending.let_read(readings, policy)),
        )
        step_s, plain_s = 0.0, self._costs.seconds(len(self._sequences))
        if asked and runs_ahead:
            step_s = self._costs.seconds(len(self._sequences) + sum(depth for _, depth, _ in asked))
        readers = self._pool.readers if self._sends_states else frozenset()
        most_nodes, price = 0, Price(self._least_survival, 0.0)
        # A least length is drafted whatever it brings.
        if not is_model_free and not policy.min_draft_tokens and self._most_nodes is not None:
            most_nodes = self._most_nodes(len(self._sequences))
            if asked:
                price = self._row_price.of([(sequence, depth) for sequence, depth, _ in asked], len(self._sequences))
        return [
            job
            for some, due_s in due_of
            for sequence, depth, route in some
            for job in self._dispatcher.jobs(
                sequence,
                route,
                depth,
                due_s,
                readers=readers,
                step_s=plain_s if some is readings else step_s,
                price=price,
                max_nodes=most_nodes,
                has_leaves=self.lengths.is_tree,
                is_reading=some is readings,
            )
        ]

    def final_jobs(self, sequence: Sequence) -> list[DraftJob]:
        return self._dispatcher.final_jobs(sequence, self._pool.mailboxes())

    def _end_round(self, step: VerifiedStep) -> None:
        guard, reading = self.lengths.modes.guard, self._costs.reading
        prompts = [(work.start, len(work.tokens)) for work in step.entries if work.silent] if guard.size else []
        if prompts:
            rows = sum(count for _, count in prompts)
            guard.add_prompts(paid_s(guard.size, rows, self._costs) + reading.step_s(prompts))
        guard.end({r.sequence.record.id: len(r.tokens) for r in step.rounds}, self._clock.monotonic())

    def _readings(self, asked: Listed[Asked], unready: Mapping[str, Set[str]]) -> list[Asked]:
        return [
            (s, 1, route.only_at(home))
            for s, _, route in asked
            for home in sorted(unready.get(s.record.id, ()))
            if not self.pending.is_reading(s.record.id, home)
        ]

    def _record_asked(self, asked: Listed[Asked], *, is_model_free: bool) -> None:
        requests = [sequence.record.id for sequence, _, _ in asked]
        if is_model_free:
            self._model_free.update(requests)
        else:
            self._model_free.difference_update(requests)
        for sequence, _, route in asked:
            if route.is_choice:
                self.router.record_asked(sequence.record, route)
        drafts = [AskedDraft(sequence, route.drafters, bool(route.homes)) for sequence, _, route in asked]
        for observer in self._observers if drafts else ():
            observer.on_asked(drafts)

    def _update(self, rounds: Listed[tuple[Sequence, Tree, Listed[int]]]) -> None:
        model_free = self._model_free
        self.lengths.modes.update(
            [(s.record, tree, committed, s.record.id in model_free) for s, tree, committed in rounds],
            self._pool.known_here,
        )
        if self.router.is_scoring:
            for sequence, tree, committed in rounds:
                self.router.update(sequence.record.id, tree, committed, tree.confidence)

    def _round_s(self, depths: Listed[int]) -> Callable[[int], float]:
        """Return the seconds of a round of these draft tokens, by the drafters asked."""
        step_s = self._costs.seconds(len(depths) + sum(depths))
        batch, deepest, costs = sum(map(bool, depths)), max(depths), self._draft_costs
        return lambda drafters: step_s + costs.of(drafters).seconds(batch, deepest)

    def _batch(self, sequences: list[Sequence], limits: list[int], policy: Policy, prompts: Prompts) -> DraftBatch:
        pool, modes = self._pool, self.lengths.modes
        has_models = bool(pool.models) and any(pool.allows_models(s.record.speculation.drafters) for s in sequences)
        if has_models:
            routed = max(len(self._route(policy, s).homes) for s, limit in zip(sequences, limits, strict=True) if limit)
            self._draft_costs.ask(self.router.count.usual(routed) if self.router.count else routed)
            # A batch that prompts will join soon must get back more of it each round.
            often = len(self._sequences) / len(sequences) if prompts.rows else 1.0
            reads_s = [
                often * self._read_s(s, policy) if limit else 0.0 for s, limit in zip(sequences, limits, strict=True)
            ]
            full = _candidates(modes.with_models, sequences, limits, reads_s)
        else:
            full = _candidates(modes.model_free, sequences, self._model_free_limits(sequences, policy))
        model_free = None
        if has_models and pool.model_free:
            model_free = _candidates(modes.model_free, sequences, self._model_free_limits(sequences, policy))
        others = len(self._sequences) - len(sequences)
        reads_prompts = others > 0 and self._is_together  # while these wait; else the other half is verified
        return DraftBatch(
            full,
            model_free,
            has_models=has_models,
            lengths={s.record.id: len(s.kv.tokens) for s in sequences},
            costs=self._costs,
            now_s=self._clock.monotonic(),
            busy_s=self._costs.seconds(others) if others and not reads_prompts else 0.0,
            prompt_rows=prompts.rows if reads_prompts else 0,
            prompts_s=prompts.seconds if reads_prompts else 0.0,
            core_share=pool.core_share,
            tree_s=self._host_costs.tree_s,
            host_s=self._host_costs.plain_s(len(sequences)),
            least=policy.min_draft_tokens,
            load=len(self._sequences),
        )

    def _model_free_limits(self, sequences: Iterable[Sequence], policy: Policy) -> list[int]:
        return [
            self.limit(s, policy, is_model_free=True) if self._model_free_route(s).drafters else 0 for s in sequences
        ]

    def _read_s(self, sequence: Sequence, policy: Policy) -> float:
        return self._draft_costs.read_s(self._unread(sequence, policy))

    def _unread(self, sequence: Sequence, policy: Policy) -> int:
        homes = {*self._route(policy, sequence).homes.values()}
        return max((self.pending.unread(sequence, home) for home in homes), default=0)

    def _model_free_route(self, sequence: Sequence) -> Route:
        return self.router.model_free(sequence.record.speculation.drafters, self._pool)

    def _route(self, policy: Policy, sequence: Sequence) -> Route:
        record, pool = sequence.record, self._pool
        known = self.router.known(record.id, len(sequence.tokens), pool)
        if known is not None:
            return known

        most = min(policy.drafters_per_sequence, self.lengths.drafters or policy.drafters_per_sequence)
        return self.router.route(record, len(sequence.tokens), pool, most)


def _candidates(
    mode: DraftMode[DraftCosts] | DraftMode[TableCosts],
    sequences: list[Sequence],
    limits: list[int],
    reads_s: Iterable[float] | None = None,
) -> list[Candidate]:
    reads = [0.0] * len(sequences) if reads_s is None else reads_s
    return [
        Candidate(mode.of(s.record), limit, read_s, s.record.max_tokens - s.generated, s.kv.cached)
        for s, limit, read_s in zip(sequences, limits, reads, strict=True)
    ]


def _asked_of(batch: DraftBatch, found: LengthDecision) -> list[Candidate]:
    return batch.model_free or batch.candidates if found.is_model_free else batch.candidates


def _way(found: LengthDecision, depths: list[int]) -> Way:
    if not any(depths):
        return Way.PLAIN
    return Way.MODEL_FREE if found.is_model_free else Way.MODELS
