"""Hold the state of a simulation: the real verifiers, drafters and fusers over a log, and the texts
still to come.

Schedule, routes, lengths, fusion, batches and waits are those of `app`, not copies of
them.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import cache

from app.assembly.verifier import verifier_over
from app.config import Settings
from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.replicas import fetcher
from app.drafter.token_fusion import TokenFusion
from app.engine.drafters.token_similarity import embedding_agreement
from app.engine.early_exit.controller import EarlyExitController
from app.engine.step_costs import StepCosts
from app.fuser.fuser import Fuser
from app.messages import Record, ToVerifier, TreeMessage
from app.policy import Policy
from app.request import Sampling, SpeculationBounds
from app.speculation.length_policy import LengthPlanner
from app.speculation.overlap import NoOverlap, Round
from app.speculation.routing import Agreement, same_tokens
from app.stages.draft.protocol import Drafter
from app.store.memory import MemoryStore
from app.verifier.measured_target import MeasuredTarget
from app.verifier.verifier import Verifier
from lab.cooperate.systems import Shape, shape_of
from lab.cooperate.variants import Variant
from lab.simulate.events import Link, Network
from lab.simulate.exits import ExitCosts, Exits
from lab.simulate.log import Log
from lab.simulate.models import MEMORY_TOKENS, PLENTY, Device, LogGuesser, LogTarget, OwnDevice, SimClock, text_of
from lab.simulate.shared_device import SharedDevice, Sharing

GATE, VERIFIERS = "gate", "verifiers"
LONGEST_S = 36000.0
RATED = cache(embedding_agreement)  # by the target's folder
MakeModelFree = Callable[[], list[Drafter]]  # makes new model-free drafters


@dataclass(frozen=True, slots=True)
class Setting:
    """The machines of a simulation: sequences at once, verifiers, how much slower one is than
    measured, and a hop.

    `is_local`: no network; one process drafts and verifies in turn, on the same cores
    (`app.pipeline.LocalPipeline`).
    """

    streams: int = 8
    verifiers: int = 1
    slowdown: float = 1.0
    hop_s: float = 0.0005
    seed: int = 0
    is_local: bool = False
    drafter_slowdown: float = 1.0  # how much slower model drafters are than measured
    shared: Sharing | None = None  # one device for the target and its drafters
    nodes: tuple[tuple[str, ...], ...] = ()  # the drafters of each node; none: each drafter on a node of its own
    is_one_core: bool = False  # do all nodes and the fuser wait for one core?
    # Are verifiers, fuser and store on one host? Then only nodes are a hop away, as their calls are.
    is_hub: bool = False
    host_s: float = 0.0  # what a verifier's own Python takes a round beside the target
    trees_s: float = (
        0.0  # and more where mail has come, its calls of a store whose core drafters are at work on included
    )
    mail_s: float = 0.0  # what a batch of mail takes a node or a fuser
    # By drafter, and of all verifiers together under VERIFIERS, to the fuser in the centre; none: a hop for all.
    links: Mapping[str, Link] = field(default_factory=dict)
    stages: int = 1  # devices in a row that a step passes, each with a part of the target
    kv_tokens: int = MEMORY_TOKENS  # that fit into the caches of all verifiers together
    silent_s: Mapping[str, float] = field(default_factory=dict)  # by drafter: from when on its node says nothing
    guesser: Callable[..., LogGuesser] = LogGuesser  # makes the models of drafters
    planner: Callable[[], LengthPlanner] | None = None  # makes a verifier's rule of lengths; None: the variant's own
    reshape: Shape | None = None  # changes every tree before a verifier sees it; None: as the variant has it
    exits: ExitCosts | None = None  # where rows may leave a pass, if the variant's settings allow it; None: nowhere


@dataclass(slots=True)
class SimVerifier:
    """A verifier on its simulated machine."""

    name: str
    segment: Verifier
    target: LogTarget
    clock: SimClock
    early_exit: EarlyExitController
    requests: int = 0  # texts it was given that have not ended


@dataclass(slots=True)
class World:
    """All machines of a simulation, and the texts still to come."""

    log: Log
    variant: Variant
    setting: Setting
    model_free: MakeModelFree
    settings: Settings
    network: Network
    store: MemoryStore
    verifiers: list[SimVerifier] = field(default_factory=list)
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # mailbox -> its drafters
    waiting: deque[str] = field(default_factory=deque)  # requests, `text.number` each
    ended: list[Record] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)
    switches: Counter[str] = field(default_factory=Counter)  # how often beat changed each field of the policy
    is_open: bool = False  # do requests come whether or not others have ended?
    device: SharedDevice | None = None  # None: each model has its own
    target_device: Device = field(default_factory=OwnDevice)  # of the target: `device`, or its own

    @property
    def model_rounds(self) -> float:
        """Return the part of the rounds after a text's first token for which a model drafter was asked; 0: no round."""
        stats = [verifier.segment.stats for verifier in self.verifiers]
        later_rounds = sum(own.later_rounds for own in stats)
        return sum(own.model_rounds for own in stats) / later_rounds if later_rounds else 0.0

    def run(self, arrivals_s: Listed[float] | None = None) -> None:
        """Run every waiting text once, `streams` at a time, from now on; or a text at each of these seconds, all texts
        in turn.

        Raises RuntimeError when a text does not end within LONGEST_S.
        """
        total = len(self.ended) + len(self.waiting)
        if arrivals_s is None:
            now_s = max(self.network.now_s, *(verifier.clock.time() for verifier in self.verifiers))
            for _ in range(self.setting.streams):
                self.admit(now_s)
        else:
            total, texts = len(arrivals_s), [*self.waiting]
            self.waiting = deque(f"{texts[i % len(texts)]}.{i}" for i in range(total))
            self.is_open = True
            for at_s in arrivals_s:
                self.network.send(GATE, None, at_s, hop_s=0.0)
        self.network.run(lambda: len(self.ended) >= total or self.network.now_s > LONGEST_S)
        if len(self.ended) < total:
            raise RuntimeError(f"{total - len(self.ended)} texts never ended")

    def admit(self, now_s: float) -> None:
        """Start the next text, if there is one, at the verifier with the fewest requests."""
        if not self.waiting:
            return
        request_id = self.waiting.popleft()
        text = text_of(request_id)
        verifier = min(self.verifiers, key=lambda v: v.requests)
        verifier.requests += 1
        record = Record(
            id=request_id,
            prompt_ids=self.log.texts[text].prompt_ids,
            max_tokens=len(self.log.texts[text].tokens),
            eos_ids=(),
            sampling=Sampling(seed=0),
            speculation=SpeculationBounds(enabled=self.variant.speculates, max_draft_tokens=self.variant.nodes),
            created_s=now_s,
        )
        self.store.create(record, limit=PLENTY)
        self.store.assign(record.id, verifier.segment.owner)
        self.network.send(verifier.name, ToVerifier(adopt=(record.id,)), now_s, hop_s=0.0)


def verifier_of(world: World, name: str, clock: SimClock) -> SimVerifier:
    """Add a verifier over the log, with the strategies of the world's settings."""
    kv_tokens = world.setting.kv_tokens // world.setting.verifiers
    exits = None if world.setting.exits is None else Exits(world.setting.exits, world.setting.seed)
    target = LogTarget(world.log, costs_of(world), clock, world.target_device, kv_tokens, exits)
    controller = EarlyExitController()
    if exits is not None:
        controller = EarlyExitController(world.settings.plan.pruning, exits.rest, exits.report)
    measured = MeasuredTarget(target, costs_of(world), world.log.vocab_size, controller)
    segment = verifier_over(
        world.settings,
        measured,
        name,
        world.store,
        owner=name,
        agreement=agreement_of(world),
        clock=clock,
        splits=world.device,
        planner=world.setting.planner() if world.setting.planner else None,
        overlapping=None if world.variant.chunk is None else FixedChunks(world.variant.chunk),
    )
    if world.device is not None:
        for number, split in enumerate(world.device.all):
            if split.at_once:
                segment.speculation.expect(number, world.device.interference(number, measured.costs.seconds(1)))
    verifier = SimVerifier(name, segment, target, clock, controller)
    world.verifiers.append(verifier)
    return verifier


class FixedChunks(NoOverlap):
    """Let drafters run ahead of every verdict, and wait for chunks of one size."""

    def __init__(self, tokens: int) -> None:
        """Wait for `tokens` tokens of each draft."""
        self._tokens = tokens

    def runs_ahead(self, asked: Round, core_share: float) -> bool:
        """Return True."""
        return True

    def chunk(self, asked: Round, core_share: float) -> int | None:
        """Return the size of a chunk."""
        return self._tokens


def agreement_of(world: World) -> Agreement:
    """Return how drafts are rated for CoSine's routing: as a deployment does, where the log's target is at hand."""
    target = world.log.target if world.settings.plan.routing == "cosine" else None
    return same_tokens if target is None else RATED(target)


def costs_of(world: World) -> StepCosts:
    """Return the target's step costs at the setting's slowdown."""
    costs = StepCosts.loads(world.log.costs, world.setting.slowdown)
    costs.ratio = 1.0
    return costs


def node_of(world: World, names: tuple[str, ...], mailbox: str, clock: SimClock) -> DrafterNode:
    """Build a node of these model drafters over the log; several share their tokens as the settings have it."""
    plan = world.settings.plan
    is_shared = plan.fusion == "token" and len(names) > 1
    models = [ModelDrafter(name, _guesser(world, name, clock), PLENTY, True) for name in names]
    kvs = (model.draft_kv for model in models)
    token_fusion = TokenFusion(kvs) if is_shared else None
    return DrafterNode(models, fetcher(world.store), mailbox, token_fusion)


def _guesser(world: World, name: str, clock: SimClock) -> LogGuesser:
    return world.setting.guesser(
        name, world.log.texts, world.log.drafters[name], clock, world.setting.drafter_slowdown, world.device
    )


def fuser_of(world: World) -> Fuser:
    """Build a fuser with model-free drafters of its own, as every process has them."""
    return Fuser(world.model_free(), world.log.vocab_size, fetcher(world.store))


def shaped(world: World, trees: list[tuple[str, TreeMessage]]) -> list[TreeMessage]:
    """Return the trees as the setting or the variant changes them before the verifier sees them."""
    shape = world.setting.reshape or shape_of(world.variant)
    return [shape(tree) if shape else tree for _, tree in trees]
