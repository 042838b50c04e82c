"""The deployment that a simulation runs: the real segments over a log of real drafts, on machines of their own.

Schedule, routes, lengths, fusion, calibration, batches and waits are those of `app`, not copies of them; here is only
what the Celery workers do around them. Drafters that share their tokens are one node of several machines, for which a
token takes a hop there and back beside the slowest one's work.
"""

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from app.config import Settings
from app.costs import CostTable
from app.crew import Crew
from app.drafting import Drafting
from app.following import fetcher
from app.fusing import Fusing
from app.messages import DraftJob, Policy, Record, Sampling, Speculation, ToDrafter, ToFuser, ToVerifier, TreeMessage
from app.pipeline import Verifying
from app.routing import Router
from app.running import Running
from app.stages.draft.cooperative import Cooperative
from app.stages.draft.model import ModelDrafter
from app.stages.draft.protocol import Drafter
from app.stages.steer import Load, steer
from app.store.memory import MemoryStore
from bench.cooperate_arms import FixedLength, Uncalibrated, shape_of
from bench.cooperate_plans import Plan
from bench.simulate_events import Machine, Network
from bench.simulate_log import Log
from bench.simulate_models import PLENTY, LogGuesser, LogTarget, SimClock

FUSE = "fuse"
LOOK_EVERY_S, STEER_EVERY_S = 0.5, 1.0
FUSE_S = 0.0003  # a batch of trees, measured
LONGEST_S = 36000.0
Tables = Callable[[], list[Drafter]]


@dataclass(frozen=True, slots=True)
class Setting:
    """The machines: how many sequences at once, how many verifiers, how slow one is beside the measured, a hop."""

    streams: int = 8
    verifiers: int = 1
    slowdown: float = 1.0
    hop_s: float = 0.0005
    seed: int = 0


@dataclass(slots=True)
class Verifier:
    """A verifier's machine, and what of it is looked at from outside."""

    name: str
    segment: Verifying
    target: LogTarget
    clock: SimClock
    guests: int = 0  # texts it was given that have not ended


@dataclass(slots=True)
class World:
    """Everything that runs, and the texts that are still to come."""

    log: Log
    plan: Plan
    setting: Setting
    tables: Tables
    settings: Settings
    network: Network
    store: MemoryStore
    verifiers: list[Verifier] = field(default_factory=list)
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # mailbox -> its drafters
    waiting: deque[int] = field(default_factory=deque)  # texts
    ended: list[Record] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)

    def run(self) -> None:
        """Every text once, `streams` of them at a time."""
        total = len(self.waiting)
        for _ in range(self.setting.streams):
            self.admit(0.0)
        self.network.run(lambda: len(self.ended) >= total or self.network.now_s > LONGEST_S)
        if len(self.ended) < total:
            raise RuntimeError(f"{total - len(self.ended)} texts never ended")

    def admit(self, now_s: float) -> None:
        """The next text begins at the verifier with the fewest."""
        if not self.waiting:
            return
        text = self.waiting.popleft()
        verifier = min(self.verifiers, key=lambda v: v.guests)
        verifier.guests += 1
        record = Record(
            id=str(text),
            prompt_ids=self.log.texts[text].prompt_ids,
            max_tokens=len(self.log.texts[text].tokens),
            eos_ids=(),
            sampling=Sampling(seed=0),
            speculation=Speculation(enabled=self.plan.speculates),
            created_s=now_s,
        )
        self.store.create(record, limit=PLENTY)
        self.store.assign(record.id, verifier.segment.owner)
        self.network.send(verifier.name, ToVerifier(adopt=(record.id,)), now_s, hop_s=0.0)


def build(log: Log, plan: Plan, setting: Setting, tables: Tables) -> World:
    """A deployment as the plan has it. Every process that fuses gets resident drafters of its own from `tables`."""
    settings = Settings().model_copy(update=dict(plan.settings))
    network = Network(setting.hop_s)

    def used() -> list[Drafter]:
        return [table for table in tables() if table.name in plan.tables]

    world = World(log, plan, setting, used, settings, network, MemoryStore(ttl_s=LONGEST_S, active_ttl_s=LONGEST_S))
    order = [i for i, text in enumerate(log.texts) if len(text.tokens) > 1]
    random.Random(setting.seed).shuffle(order)
    world.waiting.extend(order)
    names = tuple(log.drafters) if plan.drafters is None else plan.drafters
    is_shared = settings.fusion == "token" and len(names) > 1
    for node in [names] if is_shared else [(name,) for name in names]:
        _add_node(world, node, is_shared)
    _add_fuser(world)
    for i in range(setting.verifiers):
        _add_verifier(world, f"verify:{i + 1}")
    _add_beat(world)
    return world


def _add_verifier(world: World, name: str) -> None:
    clock = SimClock()
    data = json.loads(world.log.costs)
    slower = {int(rows): seconds * world.setting.slowdown for rows, seconds in data["points"]}
    fork_s = float(data.get("fork_s", 0.0)) * world.setting.slowdown
    target = LogTarget(world.log, CostTable(slower, fork_s=fork_s), clock)
    router = Router(world.settings.routing, world.settings.drafters_per_sequence)
    kind = Running if world.plan.length is None else FixedLength
    costs = CostTable(slower, fork_s=fork_s)
    running = kind(target, costs, world.log.vocab_size, name, router, world.settings.run_ahead, clock)
    if isinstance(running, FixedLength):
        running.draft_tokens = world.plan.length or 1
    verifier = Verifier(name, Verifying(name, target, running, world.store, world.settings, clock), target, clock)
    world.verifiers.append(verifier)
    running.crew = _crew(world)

    def handle(mail: list[ToVerifier]) -> float | None:
        for message in mail:
            verifier.segment.adopt(message.adopt)
            verifier.segment.offer(message.trees)
        verifier.segment.policy = world.policy
        jobs = verifier.segment.step(clock.time())
        _send_jobs(world, jobs, clock.time())
        for record in verifier.segment.ended:
            world.ended.append(record)
            verifier.guests -= 1
            world.admit(clock.time())
        verifier.segment.ended = []
        return verifier.segment.wait_s(clock.time())

    world.network.add(Machine(name, clock, handle))


def _add_node(world: World, names: tuple[str, ...], is_shared: bool) -> None:
    mailbox = f"draft:{'+'.join(names)}"
    clock = SimClock(step_s=2.0 * world.setting.hop_s if is_shared else 0.0)
    models = [
        ModelDrafter(name, LogGuesser(name, world.log.texts, world.log.drafters[name], clock), PLENTY, True)
        for name in names
    ]
    together = Cooperative(model.reader for model in models) if is_shared else None
    segment = Drafting(models, fetcher(world.store), _fusing(world), mailbox, together, clock)
    world.nodes[mailbox] = names

    def handle(mail: list[ToDrafter]) -> float | None:
        if not mail and segment.has_ahead:
            segment.run_ahead()
            return 0.0 if segment.has_ahead else None
        jobs = [job for message in mail for job in message.jobs if job.is_last or job.due_s > clock.time()]
        drafts, trees = segment.run(jobs)
        _send_trees(world, trees, clock.time())
        if drafts:
            world.network.send(FUSE, ToFuser(drafts=tuple(drafts)), clock.time())
        return 0.0 if segment.has_ahead else None

    world.network.add(Machine(mailbox, clock, handle))


def _add_fuser(world: World) -> None:
    clock = SimClock()
    segment = _fusing(world)

    def handle(mail: list[ToFuser]) -> float | None:
        for message in mail:
            segment.expect(message.jobs)
            segment.receive(message.drafts)
        trees = segment.collect(clock.time())
        if trees:
            clock.run(FUSE, FUSE_S)
        _send_trees(world, trees, clock.time())
        return segment.wait_s(clock.time())

    world.network.add(Machine(FUSE, clock, handle))


def _add_beat(world: World) -> None:
    """What heartbeats tell verifiers of drafters' queues, and the scheduler's tick."""
    clock = SimClock()
    ticks = 0

    def handle(mail: list[None]) -> float | None:
        nonlocal ticks
        ticks += 1
        for verifier in world.verifiers:
            verifier.segment.running.crew = _crew(world)
        if ticks % round(STEER_EVERY_S / LOOK_EVERY_S) == 0:
            world.policy = steer(_load(world), world.policy)
        return LOOK_EVERY_S

    world.network.add(Machine("beat", clock, handle))
    world.network.send("beat", None, 0.0)


def _load(world: World) -> Load:
    running = sum(len(verifier.segment.running.sequences) for verifier in world.verifiers)
    waiting = {name: len(world.network.machines[name].mail) for name in (*world.nodes, FUSE)}
    fuse = waiting.pop(FUSE)
    return Load(running, running, fuse, sum(waiting.values()), len(world.verifiers))


def _crew(world: World) -> Crew:
    boxes = {name: box for box, names in world.nodes.items() for name in names}
    return Crew(
        remote=boxes,
        resident=world.plan.tables,
        share=0.0,
        fuser=FUSE,
        readers=frozenset(boxes),
        waiting={box: len(world.network.machines[box].mail) for box in world.nodes},
        away=frozenset(world.nodes),
    )


def _fusing(world: World) -> Fusing:
    """With tables of its own, as every process has them."""
    fusing = Fusing(world.tables(), world.log.vocab_size, fetcher(world.store))
    if world.plan.without == "calibration":
        fusing.calibration = Uncalibrated()
    return fusing


def _send_jobs(world: World, jobs: list[DraftJob], at_s: float) -> None:
    mail: dict[str, list[DraftJob]] = {}
    for job in jobs:
        mail.setdefault(job.to, []).append(job)
    for mailbox, own in mail.items():
        message = ToFuser(jobs=tuple(own)) if mailbox == FUSE else ToDrafter(jobs=tuple(own))
        world.network.send(mailbox, message, at_s)


def _send_trees(world: World, trees: list[tuple[str, TreeMessage]], at_s: float) -> None:
    shape = shape_of(world.plan)
    by_verifier: dict[str, list[TreeMessage]] = {}
    for mailbox, tree in trees:
        by_verifier.setdefault(mailbox, []).append(shape(tree) if shape else tree)
    for mailbox, batch in by_verifier.items():
        world.network.send(mailbox, ToVerifier(trees=tuple(batch)), at_s)
