"""Make a verifier's parts over a tiny model, for the tests of each."""

from dataclasses import dataclass
from math import inf
from typing import Any

from app.assembly.verifier import lengths, overlap, routing
from app.clock import SYSTEM, Clock
from app.config import Settings
from app.engine.cpu.runner import ModelRunner
from app.engine.step_costs import StepCosts
from app.messages import DraftJob, Record, Stats, Status, TreeMessage
from app.policy import Policy
from app.round_observer import VerifiedRound, VerifiedStep
from app.scheduler.tree_budget import PaceSelection
from app.speculation.draft_costs import DraftCosts
from app.speculation.drafter_pool import DrafterPool
from app.speculation.length_protocol import LengthPlanner
from app.speculation.overlap import NoOverlap, Overlap
from app.speculation.routing import Router
from app.speculation.speculation import DraftStrategies, Speculation
from app.state import BatchEntry, Sequence, Tree, Verdict
from app.store.protocol import Snapshot
from app.verifier.metrics import VerifierMetrics
from app.verifier.sequences import Sequences
from app.verifier.stats import VerifierStats
from tests import fakes

MODEL = fakes.served().model


class HandClock:
    """Stand still at `now_s` until that is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    monotonic = perf_counter = thread_time = time


class RunsAhead(NoOverlap):
    """Let drafters run ahead of every verdict."""

    def runs_ahead(self, core_share: float) -> bool:
        return True


@dataclass(frozen=True)
class Parts:
    """Hold a runner, and the sequences, statistics and speculation over it."""

    runner: ModelRunner
    stats: VerifierStats
    sequences: Sequences
    speculation: Speculation

    @property
    def lengths(self) -> LengthPlanner:
        return self.speculation.lengths

    @property
    def draft_costs(self) -> DraftCosts:
        return self.lengths.modes.with_models.costs

    def repriced(self, costs: StepCosts, pool: DrafterPool | None = None, **settings: Any) -> "Parts":
        """Return parts with the same sequences and estimates, other costs and other settings."""
        strategies = DraftStrategies(self.lengths, self.speculation.router, overlap(Settings().changed(**settings)))
        speculation = Speculation(self.sequences, costs, fakes.VOCAB, strategies, "mailbox", (self.stats,))
        speculation.follow(pool or self.speculation.pool)
        return Parts(self.runner, self.stats, self.sequences, speculation)


def parts(
    *,
    pages: int = 64,
    costs: StepCosts | None = None,
    pool: DrafterPool | None = None,
    clock: Clock = SYSTEM,
    overlapping: Overlap | None = None,
    **settings: Any,
) -> Parts:
    """Make parts that ask a model drafter and a model-free one, by the strategies of these settings."""
    chosen = Settings().changed(**settings)
    runner = fakes.runner(MODEL, pages=pages)
    costs = costs or StepCosts({1: 1.0})
    measured = fakes.measured(runner, costs)
    rules = lengths(chosen), Router(routing(chosen)), overlapping or overlap(chosen)
    most_nodes = PaceSelection().most_nodes if chosen.plan.lengths == "marginal" else None
    strategies = DraftStrategies(*rules, stated_tokens=chosen.plan.stated_tokens, most_nodes=most_nodes)
    stats = VerifierStats(measured, strategies.router.asked_rounds, VerifierMetrics())
    sequences = Sequences(runner, stats)
    speculation = Speculation(sequences, costs, fakes.VOCAB, strategies, "mailbox", (stats,), clock)
    speculation.follow(pool or DrafterPool({"small": "draft:1"}, ("lookup",)))
    return Parts(runner, stats, sequences, speculation)


def drafts_asked(
    speculation: Speculation,
    sequences: list[Sequence],
    depths: list[int],
    policy: Policy,
    worth_s: float = inf,
    *,
    is_model_free: bool = False,
) -> list[DraftJob]:
    """Ask for so many tokens of each sequence."""
    wanted = speculation.ask(sequences, depths, policy, worth_s, is_model_free=is_model_free)
    return speculation.jobs(wanted, policy, worth_s, is_model_free=is_model_free)


def start(one: Parts, request_id: str, length: int = 5, generated: int = 0, strikes: int = 0, **rest: Any) -> Sequence:
    record = fakes.record([1] * length, request_id=request_id, **rest)
    one.sequences.start(snapshot(record, generated, strikes))
    return one.sequences[request_id]


def snapshot(record: Record, generated: int, strikes: int) -> Snapshot:
    return Snapshot(
        record, Status.ACTIVE, (2,) * generated, (), None, None, Stats(rounds=generated), "o", strikes, None
    )


def verdict(one: Parts, sequence: Sequence, tokens: list[int]) -> None:
    """Let a step with the sequence's tree commit these tokens."""
    entry = BatchEntry(sequence.kv, 0, [], sequence.tree or Tree(), final=True)
    step = VerifiedStep([entry], [VerifiedRound(sequence, entry, Verdict([], tokens), tokens)], 1, 0.1)
    one.stats.on_verdict(step)
    one.speculation.on_verdict(step)


def message(**changes: Any) -> TreeMessage:
    values = {
        "request_id": "r",
        "base": 5,
        "tokens": (1, 2),
        "parents": (0, 1),
        "survival": (0.9, 0.8),
        "proposers": (("a",), ("a",)),
    }
    return TreeMessage(**{**values, **changes})
