"""Build a verifier: load and measure its target, choose its strategies by the settings."""

import logging
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from app.assembly.devices import CHUNK_TOKENS, AnyRunner, device_of, forget_files, max_sequences, pruning, target_runner
from app.assembly.fuser import build_fuser
from app.clock import SYSTEM, Clock
from app.config import Settings
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.runner import ModelRunner
from app.engine.drafters.token_similarity import embedding_agreement
from app.engine.early_exit.controller import EarlyExitController
from app.engine.kv.block_manager import PagedRunner
from app.engine.profile.profile_cache import is_kept
from app.engine.profile.profile_cache import measured as measure
from app.engine.step_costs import StepCosts
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import refusing, target_folder
from app.engine.weights.target_id import target_id
from app.placement.splits import FixedSplits, Splits
from app.scheduler.cosine import CosineSelection, Memory
from app.scheduler.tree_budget import BatchSelection, PaceSelection, WholeSelection
from app.speculation.baselines import BaselineController, length_policy, length_search
from app.speculation.draft_costs import DraftCosts
from app.speculation.draft_length import LengthController
from app.speculation.joint import JointController
from app.speculation.length_protocol import LengthPlanner
from app.speculation.overlap import AheadOverlap, HalvesOverlap, NoOverlap, Overlap
from app.speculation.routing import (
    Agreement,
    CosineRouting,
    FixedRouting,
    PaceRouting,
    Router,
    RoutingStrategy,
    same_tokens,
)
from app.speculation.speculation import DraftStrategies, Speculation
from app.store.memory import MemoryStore
from app.store.protocol import Requests, Snapshot
from app.verifier.measured_target import MeasuredTarget
from app.verifier.metrics import VerifierMetrics
from app.verifier.replay import Replay
from app.verifier.sequences import Sequences
from app.verifier.stats import VerifierStats
from app.verifier.verifier import Verifier

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A target that is loaded, with its tokenizer; it is measured where no `costs` are stated."""

    tokenizer: Tokenizer
    runner: "AnyRunner | None" = None
    forks: bool = False  # a process that has loaded it may be forked
    costs: StepCosts | None = None


def build_verifier(
    settings: Settings,
    mailbox: str,
    store: Requests,
    metrics: VerifierMetrics,
    loaded: Loaded | None = None,
    on_lost: Callable[[Exception], None] | None = None,
    prepare_splits: Callable[[AnyRunner], Splits] | None = None,
    owner: str | None = None,
) -> Verifier:
    """Load, check and measure what `loaded` has not, and build the target's verifier. Raises ModelRefused.

    `prepare_splits` makes, for the loaded target, the ways to divide the machine; by default there is one.
    """
    runner, costs, tokenizer = load_target(settings, loaded, in_full=False)
    target = target_id(target_folder(settings), settings, tokenizer.sha256, device_of(settings).type)
    tokenizer.grammars.prepare()  # now, since later sequences would wait for it
    measured = measured_target(settings, runner, costs, tokenizer)
    return verifier_over(
        settings,
        measured,
        mailbox,
        store,
        owner=owner,
        tokenizer=tokenizer,
        agreement=agreement(settings),
        target=target,
        metrics=metrics,
        on_lost=on_lost,
        splits=prepare_splits(runner) if prepare_splits else None,
    )


def load_ahead(settings: Settings, in_fork: Callable[[Callable[[], object]], None]) -> Loaded:
    """Load the target, and what its forks share if it is compiled: torch's threads and a GPU do not fork.

    `in_fork` does what only a first start does. Raises ModelRefused.
    """
    folder = target_folder(settings)
    if settings.engine == "vllm":
        with refusing(folder):
            return Loaded(Tokenizer(folder))
    if device_of(settings).type == "cpu" and not is_kept(folder, settings):
        in_fork(lambda: load_target(settings, in_full=False))
    forks = is_kept(folder, settings)  # else loading runs it by torch first
    with refusing(folder):
        tokenizer = Tokenizer(folder)
        runner = target_runner(folder, settings, tokenizer.context_tokens)
    if not (forks and isinstance(runner, ModelRunner) and isinstance(runner.model, FusedForward)):
        return Loaded(tokenizer, runner)
    tokenizer.grammars.prepare()
    pruning(runner, folder, settings)
    build_fuser(settings, tokenizer, MemoryStore(ttl_s=settings.request_ttl_s))
    forget_files(folder)
    return Loaded(tokenizer, runner, forks=True)


def load_target(
    settings: Settings, loaded: Loaded | None = None, *, in_full: bool = True
) -> tuple[AnyRunner, StepCosts, Tokenizer]:
    """Load, check and measure the target; `in_full`: see `measured`. Raises ModelRefused."""
    folder = target_folder(settings)
    with refusing(folder):
        tokenizer = loaded.tokenizer if loaded else Tokenizer(folder)
        runner = loaded.runner if loaded else None
        runner = runner or target_runner(folder, settings, tokenizer.context_tokens)
        costs = (loaded.costs if loaded else None) or _measured(runner, tokenizer, folder, settings, in_full)
    log.info("step costs, ms by rows: %s", costs.dumps())
    return runner, costs, tokenizer


def _measured(runner: AnyRunner, tokenizer: Tokenizer, folder: Path, settings: Settings, in_full: bool) -> StepCosts:
    size = tokenizer.vocab_size
    if isinstance(runner, PagedRunner):
        device = device_of(settings).type
        return measure(runner, size, tokenizer.context_tokens, folder, settings, device, in_full=in_full)
    from app.engine.vllm.costs import measure_costs  # vLLM is in an environment of its own

    return measure_costs(runner, size, max_sequences(settings))


def measured_target(settings: Settings, runner: AnyRunner, costs: StepCosts, tokenizer: Tokenizer) -> MeasuredTarget:
    """Bundle a loaded target with its costs and early exit. Raises ModelRefused."""
    folder = target_folder(settings)
    early_exit = pruning(runner, folder, settings)
    forget_files(folder)
    return MeasuredTarget(runner, costs, tokenizer.vocab_size, early_exit, CHUNK_TOKENS[device_of(settings).type])


def verifier_over(
    settings: Settings,
    measured: MeasuredTarget,
    mailbox: str,
    store: Requests,
    *,
    owner: str | None = None,
    target: str = "",
    tokenizer: Tokenizer | None = None,
    agreement: Agreement = same_tokens,
    metrics: VerifierMetrics | None = None,
    on_lost: Callable[[Exception], None] | None = None,
    clock: Clock = SYSTEM,
    splits: Splits | None = None,
    planner: LengthPlanner | None = None,
    overlapping: Overlap | None = None,
) -> Verifier:
    """Build a verifier around a target, with the strategies that the settings select.

    `target`: the target's id, which its requests keep. `agreement` rates drafts for CoSine's routing. Without a
    tokenizer requests cannot have stop strings or a schema. `planner` and `overlapping` replace what the plan names.
    """
    plan, splits = settings.plan, splits or FixedSplits()
    planner = planner or lengths(settings, splits)
    selecting = selection(settings, planner.modes.with_models.costs, measured.target)
    strategies = DraftStrategies(
        planner,
        Router(routing(settings, agreement), plan.drafters_per_sequence),
        overlapping or (planner if isinstance(planner, JointController) else overlap(settings)),
        sends_states=plan.states,
        shares_tokens=plan.fusion == "token",
        drafts_whole=plan.drafts_whole,
        most_nodes=selecting.most_nodes if plan.lengths == "marginal" else None,
        stated_tokens=plan.stated_tokens,
        splits=splits,
    )
    stats = VerifierStats(measured, strategies.router.asked_rounds, metrics or VerifierMetrics())
    sequences = Sequences(measured.target, stats, tokenizer, max_sequences(settings))
    observers = (stats, stats.metrics)
    speculation = Speculation(sequences, measured.costs, measured.vocab_size, strategies, mailbox, observers, clock)
    return Verifier(
        owner or uuid.uuid4().hex,
        mailbox,
        store,
        measured,
        sequences,
        speculation,
        stats,
        selecting,
        target_id=target,
        on_lost=on_lost,
        clock=clock,
    )


def build_replay(settings: Settings, verifier: Verifier, tokenizer: Tokenizer, answered: Snapshot) -> Replay:
    """Build what replays a request on the verifier's target, between its steps, and teaches it nothing."""
    costs, store = StepCosts.loads(verifier.costs.dumps()), MemoryStore()
    measured = MeasuredTarget(verifier.target, costs, tokenizer.vocab_size, EarlyExitController())
    return Replay(answered, verifier_over(settings, measured, "", store, tokenizer=tokenizer), store)


def agreement(settings: Settings) -> Agreement:
    """Return how drafts are rated for routing: by embedding for CoSine's."""
    return embedding_agreement(target_folder(settings)) if settings.plan.routing == "cosine" else same_tokens


def routing(settings: Settings, agreement: Agreement = same_tokens) -> RoutingStrategy:
    match settings.plan.routing:
        case "pace":
            return PaceRouting()
        case "cosine":
            return CosineRouting(agreement)
        case "all":
            return FixedRouting()
        case "first":
            return FixedRouting(1)


def lengths(settings: Settings, splits: Splits | None = None) -> LengthPlanner:
    """Choose the planner of draft lengths, which with `overlap=joint` decides chunk and split, too."""
    plan = settings.plan
    kind = plan.lengths
    search = length_search(kind) if plan.overlap == "joint" else None
    if search is not None:
        return JointController(search, (splits or FixedSplits()).all)
    baseline = length_policy(kind, plan.drafters_per_sequence)
    is_tree = kind == "cosine" or kind.startswith("tree:")
    if baseline is None:
        return LengthController()
    return BaselineController(baseline, is_tree=is_tree)


def overlap(settings: Settings) -> Overlap:
    match settings.plan.overlap:
        case "auto":
            return AheadOverlap()
        case "halves":
            return HalvesOverlap()
        case "always-halves":
            return HalvesOverlap(gain=0.0)
        case _:
            return NoOverlap()


def selection(settings: Settings, draft_costs: DraftCosts, memory: Memory) -> BatchSelection:
    """Choose how the trees of a step are selected; CoSine's rule reads the free `memory`."""
    plan = settings.plan
    if plan.batching == "cosine":
        return CosineSelection(draft_costs.seconds, memory, plan.objective)
    return PaceSelection() if plan.lengths == "marginal" else WholeSelection()
