"""Hold the state of a simulation: the real verifiers, drafters and fusers over a recording, and requests to come.

Schedule, routes, lengths, fusion, batches and waits are those of `app`.
"""

from collections import deque
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
from app.speculation.length_protocol import LengthPlanner
from app.speculation.routing import Agreement, same_tokens
from app.stages.draft.protocol import Drafter
from app.store.memory import MemoryStore
from app.store.protocol import Snapshot
from app.verifier.measured_target import MeasuredTarget
from app.verifier.verifier import Verifier
from lab.lone import Shape, lone
from lab.simulate.events import Link, Network
from lab.simulate.exits import ExitCosts, Exits
from lab.simulate.log import Log
from lab.simulate.models import MEMORY_TOKENS, PLENTY, Device, LogGuesser, LogTarget, OwnDevice, SimClock, text_of
from lab.simulate.shared_device import SharedDevice, Sharing
from lab.ways import Variant

GATE, VERIFIERS = "gate", "verifiers"
LONGEST_S = 36000.0
RATED = cache(embedding_agreement)  # by the target's folder
MakeModelFree = Callable[[], list[Drafter]]  # makes new model-free drafters


@dataclass(frozen=True, slots=True)
class Setting:
    """The machines of a simulation, and the requests at once."""

    streams: int = 8
    verifiers: int = 1
    slowdown: float = 1.0  # of the target, over its step costs
    hop_s: float = 0.0005
    seed: int = 0
    is_local: bool = False  # one process drafts and verifies in turn, on the same cores
    drafter_slowdown: float = 1.0  # how much slower model drafters are than measured
    shared: Sharing | None = None  # one device for the target and its drafters
    nodes: tuple[tuple[str, ...], ...] = ()  # the drafters of each node; none: each drafter on a node of its own
    cores: int = 0  # that all nodes and the fuser share; 0: each has its own
    is_hub: bool = False  # verifiers, fuser and store are on one host, and nodes and their calls a hop away
    host_s: float = 0.0  # of a verifier's Python in a round, beside the target
    trees_s: float = 0.0  # more of it in a round with mail
    here_s: float = 0.0  # more of it for each tree that it drafts itself
    search_s: float = 0.0  # more of it for each sequence whose length FASER's controller searches
    mail_s: float = 0.0  # of a node or fuser for a batch of mail
    jobs_s: float = 0.0  # more of a node for one with jobs
    again_s: float = 0.0  # of a client, from the end of a request to its next one
    # By drafter, and of all verifiers together under VERIFIERS, to the fuser in the centre; none: a hop for all.
    links: Mapping[str, Link] = field(default_factory=dict)
    stages: int = 1  # devices in a row that a step passes, each with a part of the target
    kv_tokens: int = MEMORY_TOKENS  # that fit into the caches of all verifiers together
    guesser: Callable[..., LogGuesser] = LogGuesser  # makes the models of drafters
    planner: Callable[[], LengthPlanner] | None = None  # makes a verifier's rule of lengths; None: the variant's own
    reshape: Shape | None = None  # changes every tree before a verifier sees it; None: as the variant has it
    exits: ExitCosts | None = None  # where rows may leave a pass, if the variant's settings allow it; None: nowhere


@dataclass(slots=True)
class SimVerifier:
    name: str
    segment: Verifier
    target: LogTarget
    clock: SimClock
    requests: int = 0  # texts it was given that have not ended


@dataclass(slots=True)
class World:
    """All machines of a simulation, and the requests still to come."""

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
    is_open: bool = False  # do requests come whether or not others have ended?
    device: SharedDevice | None = None  # None: each model has its own
    target_device: Device = field(default_factory=OwnDevice)  # of the target: `device`, or its own

    @property
    def model_rounds(self) -> float:
        """Return the part of the rounds after a text's first token for which a model drafter was asked; 0: no round."""
        stats = [verifier.segment.stats for verifier in self.verifiers]
        later_rounds = sum(own.later_rounds for own in stats)
        return sum(own.model_rounds for own in stats) / later_rounds if later_rounds else 0.0

    @property
    def ends(self) -> list[Snapshot]:
        return [self.store.snapshot(record.id) for record in self.ended]

    def run(self, arrivals_s: Listed[float] | None = None) -> None:
        """Run every waiting request: `streams` at a time, or one at each of these seconds from now on.

        Raises RuntimeError when a request does not end within LONGEST_S.
        """
        total = len(self.ended) + len(self.waiting)
        now_s = max(self.network.now_s, *(verifier.clock.time() for verifier in self.verifiers))
        self.is_open = arrivals_s is not None
        if arrivals_s is None:
            for _ in range(self.setting.streams):
                self.admit(now_s)
        else:
            for at_s in arrivals_s:
                self.network.send(GATE, None, now_s + at_s, hop_s=0.0)
        self.network.run(lambda: len(self.ended) >= total or self.network.now_s > LONGEST_S)
        if len(self.ended) < total:
            raise RuntimeError(f"{total - len(self.ended)} texts never ended")

    def admit(self, now_s: float) -> None:
        """Start the next request, if there is one, at the verifier with the fewest."""
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
            speculation=SpeculationBounds(enabled=self.variant.speculates),
            created_s=now_s,
        )
        self.store.create(record, limit=PLENTY)
        self.store.assign(record.id, verifier.segment.owner)
        self.network.send(verifier.name, ToVerifier(adopt=(record.id,)), now_s, hop_s=0.0)


def verifier_of(world: World, name: str, clock: SimClock) -> SimVerifier:
    """Add a verifier over the log, with the strategies of the world's settings."""
    kv_tokens = world.setting.kv_tokens // world.setting.verifiers
    exits = None if world.setting.exits is None else Exits(world.setting.exits, world.setting.seed)
    costs, known = (costs_of(world.log, world.setting.slowdown) for _ in range(2))  # what a verifier knows, it corrects
    target = LogTarget(world.log, costs, clock, world.target_device, kv_tokens, exits)
    controller = EarlyExitController()
    if exits is not None:
        controller = EarlyExitController(world.settings.plan.pruning, exits.rest, exits.report)
    measured = MeasuredTarget(target, known, world.log.vocab_size, controller)
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
    )
    if world.device is not None:
        for number, split in enumerate(world.device.all):
            if split.at_once:
                segment.speculation.expect(number, world.device.interference(number, measured.costs.seconds(1)))
    verifier = SimVerifier(name, segment, target, clock)
    world.verifiers.append(verifier)
    return verifier


def agreement_of(world: World) -> Agreement:
    """Return how CoSine's routing rates drafts: by the target's embedding, or by equal tokens without a target."""
    target = world.log.target if world.settings.plan.routing == "cosine" else None
    return same_tokens if target is None else RATED(target)


def costs_of(log: Log, slowdown: float) -> StepCosts:
    costs = StepCosts.loads(log.costs, slowdown)
    costs.ratio = 1.0
    return costs


def node_of(world: World, names: tuple[str, ...], mailbox: str, clock: SimClock) -> DrafterNode:
    plan = world.settings.plan
    is_shared = plan.fusion == "token" and len(names) > 1
    models = [ModelDrafter(name, _guesser(world, name, clock), PLENTY, True, clock) for name in names]
    kvs = (model.draft_kv for model in models)
    token_fusion = TokenFusion(kvs) if is_shared else None
    return DrafterNode(models, fetcher(world.store), mailbox, token_fusion, clock)


def _guesser(world: World, name: str, clock: SimClock) -> LogGuesser:
    return world.setting.guesser(
        name, world.log.texts, world.log.drafters[name], clock, world.setting.drafter_slowdown, world.device
    )


def fuser_of(world: World) -> Fuser:
    return Fuser(world.model_free(), world.log.vocab_size, fetcher(world.store))


def shaped(world: World, trees: list[tuple[str, TreeMessage]]) -> list[TreeMessage]:
    """Return the trees as the setting or the variant changes them."""
    shape = world.setting.reshape or (lone if world.variant.without == "fusion" else None)
    return [shape(tree) if shape else tree for _, tree in trees]
