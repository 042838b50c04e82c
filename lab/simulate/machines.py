"""Build the deployment that a simulation runs: machines for verifiers, drafter nodes, the fuser and the beat.

A machine does what a Celery worker does around its segment.
"""

import random
from collections.abc import Mapping
from itertools import count

from app.beat import steer
from app.config import Settings
from app.drafter.drafter import in_time
from app.load import Load, MailboxLoad
from app.messages import FUSE, DraftJob, ToDrafter, ToFuser, ToVerifier, TreeMessage
from app.pipeline import begin_drafts, draft_and_fuse, draft_here, gather_and_fuse, go_on_drafting
from app.policy import Policy
from app.speculation.drafter_pool import DrafterPool
from app.speculation.jobs import jobs_by_mailbox
from app.stages.draft.protocol import Drafter
from app.stages.draft.registry import MODEL_FREE
from app.store.memory import MemoryStore
from app.store.protocol import Node
from lab.simulate.events import Cores, Machine, Network, Wire
from lab.simulate.log import Log
from lab.simulate.models import SimClock
from lab.simulate.pipeline_device import PipelineDevice
from lab.simulate.shared_device import SharedDevice
from lab.simulate.world import (
    GATE,
    LONGEST_S,
    VERIFIERS,
    MakeModelFree,
    Setting,
    SimVerifier,
    World,
    fuser_of,
    node_of,
    shaped,
    verifier_of,
)
from lab.ways import Variant
from workers.celery_app import STEER_EVERY_S
from workers.deployment import paths_by_mailbox, trees_by_mailbox

LOCAL = "local"  # mailbox
TOKENIZER = "log"  # all nodes have the same
LOOK_EVERY_S = 0.5
FUSE_S = 0.0003  # a batch of trees, measured


def build(log: Log, variant: Variant, setting: Setting, model_free: MakeModelFree) -> World:
    """Build a deployment as the variant says; each machine that fuses gets new drafters from `model_free`."""
    settings = Settings().changed(**variant.settings)
    names = tuple(log.drafters) if variant.drafters is None else variant.drafters
    nodes = [own for each in setting.nodes or [(name,) for name in names] if (own := _of(each, names))]
    network = Network(setting.hop_s, _wires(setting, nodes))

    def used() -> list[Drafter]:
        return [drafter for drafter in model_free() if drafter.name in model_free_of(variant, settings)]

    world = World(log, variant, setting, used, settings, network, MemoryStore(ttl_s=LONGEST_S, active_ttl_s=LONGEST_S))
    world.policy = Policy.model_validate(variant.policy)
    if setting.shared is not None:
        world.target_device = world.device = SharedDevice(setting.shared, settings.plan.partition)
    elif setting.stages > 1:
        world.target_device = PipelineDevice(setting.stages)
    if setting.exits is not None:
        world.policy = world.policy.model_copy(update={"pruning": True})
    order = [i for i, text in enumerate(log.texts) if len(text.tokens) > 1]
    random.Random(setting.seed).shuffle(order)
    world.waiting.extend(map(str, order))
    _add_gate(world)
    if setting.is_local:
        _add_local(world, names)
        return world
    cores = Cores(setting.cores) if setting.cores else None
    for here in nodes:
        _add_node(world, here, cores or Cores())
    _add_fuser(world, cores or Cores())
    for name in _verifiers(setting):
        _add_verifier(world, name)
    _add_beat(world)
    return world


def _of(node: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in node if name in names)


def _verifiers(setting: Setting) -> list[str]:
    return [f"verify:{i + 1}" for i in range(setting.verifiers)]


def _node_of(names: tuple[str, ...]) -> str:
    return f"draft:{'+'.join(names)}"


def _wires(setting: Setting, nodes: list[tuple[str, ...]]) -> dict[str, Wire]:
    """Return each machine's link to the fuser, by mailbox; verifiers share one."""
    if not setting.links:
        return {}
    shared = Wire(setting.links[VERIFIERS])
    return dict.fromkeys(_verifiers(setting), shared) | {
        _node_of(names): Wire(setting.links[names[0]]) for names in nodes
    }


def model_free_of(variant: Variant, settings: Settings) -> tuple[str, ...]:
    """Name the model-free drafters of a variant: its own, or its plan's."""
    if variant.model_free is not None:
        return variant.model_free
    return MODEL_FREE if settings.plan.model_free else ()


def _add_local(world: World, names: tuple[str, ...]) -> None:
    """Add one machine for everything: a step, and the drafts for the next one, in turn on one clock."""
    clock = SimClock(is_serial=True)
    verifier = verifier_of(world, LOCAL, clock)
    segment, fuser = node_of(world, names, LOCAL, clock), fuser_of(world)
    pool = DrafterPool(
        models=dict.fromkeys(names, LOCAL),
        model_free=model_free_of(world.variant, world.settings),
        fuser=LOCAL,
        alone=LOCAL,
        readers=frozenset(names),
    )
    verifier.segment.follow(pool, world.policy)

    def handle(mail: list[ToVerifier]) -> float | None:
        for message in mail:
            verifier.segment.adopt(message.adopt)
        jobs = verifier.segment.step(float("inf"))
        if jobs:
            clock.rest()
            _, trees = draft_and_fuse(segment, fuser, jobs)
            clock.now_s += FUSE_S
            verifier.segment.receive(shaped(world, trees))
        _go_on(world, verifier)
        return 0.0 if verifier.segment.sequences else None

    world.network.add(Machine(LOCAL, clock, handle))


def _add_gate(world: World) -> None:
    clock = SimClock()

    def handle(mail: list[None]) -> float | None:
        for _ in mail:
            world.admit(clock.time())
        return None

    world.network.add(Machine(GATE, clock, handle))


def _add_verifier(world: World, name: str) -> None:
    clock = SimClock()
    verifier, fuser, setting = verifier_of(world, name, clock), fuser_of(world), world.setting
    verifier.segment.follow(_pool(world, name), world.policy)

    def handle(mail: list[ToVerifier]) -> float | None:
        for message in mail:
            verifier.segment.adopt(message.adopt)
            verifier.segment.receive(message.trees)
        verifier.segment.follow(verifier.segment.speculation.pool, world.policy)
        wanted = verifier.segment.step(clock.time())
        jobs, trees = draft_here(fuser, name, wanted)
        searches = len({job.request_id for job in wanted}) if world.settings.plan.overlap == "joint" else 0
        clock.run(
            name,
            setting.host_s * bool(verifier.segment.stepped)
            + setting.trees_s * bool(mail)
            + setting.search_s * searches
            + (FUSE_S * bool(trees) + setting.here_s * len(trees)),
        )
        verifier.segment.receive(shaped(world, trees))
        _send_jobs(world, jobs, clock.time())
        _go_on(world, verifier)
        return verifier.segment.wait_s(clock.time())

    world.network.add(Machine(name, clock, handle))


def _go_on(world: World, verifier: SimVerifier) -> None:
    """Record the ended requests, and in a closed loop admit the next one for each."""
    for record in verifier.segment.take_ended():
        world.ended.append(record)
        verifier.requests -= 1
        if not world.is_open:
            world.admit(verifier.clock.time() + world.setting.again_s)


def _add_node(world: World, names: tuple[str, ...], cores: Cores) -> None:
    mailbox = _node_of(names)
    clock = SimClock()
    segment, fuser = node_of(world, names, mailbox, clock), fuser_of(world)
    world.nodes[mailbox] = names

    def handle(mail: list[ToDrafter]) -> float | None:
        if not mail and not segment.is_drafting:
            segment.run_ahead()
            return 0.0 if segment.has_ahead else None
        jobs = in_time((job for message in mail for job in message.jobs), clock.time())
        clock.run("mail", world.setting.mail_s * bool(mail) + world.setting.jobs_s * bool(jobs))
        clock.rest()
        begin_drafts(segment, fuser, jobs)
        segment.drop_late(clock.time())
        drafts, trees = go_on_drafting(segment, fuser)
        _send_trees(world, trees, clock.time())
        guesses = segment.guess(path for message in mail for path in message.paths)
        if drafts or guesses:
            world.network.send(FUSE, ToFuser(drafts=tuple(drafts), guesses=tuple(guesses)), clock.time())
        return 0.0 if segment.is_drafting or segment.has_ahead else None

    calls_s = 4.0 * world.setting.hop_s if world.setting.is_hub else 0.0  # to post, and to take what waits
    world.network.add(Machine(mailbox, clock, handle, cores=cores, calls_s=calls_s))


def _add_fuser(world: World, cores: Cores) -> None:
    clock = SimClock()
    segment = fuser_of(world)

    def handle(mail: list[ToFuser]) -> float | None:
        clock.run("mail", world.setting.mail_s * bool(mail))
        clock.rest()
        paths, trees = gather_and_fuse(segment, mail, clock.time())
        for box, messages in paths_by_mailbox(paths).items():
            for message in messages:
                world.network.send(box, message, clock.time())
        if trees:
            clock.run(FUSE, FUSE_S)
        _send_trees(world, trees, clock.time(), _near_s(world))
        return segment.wait_s(clock.time())

    world.network.add(Machine(FUSE, clock, handle, cores=cores))


def _add_beat(world: World) -> None:
    """Add the beat: heartbeats report drafters' queues to verifiers, and the policy follows the load."""
    clock, ticks = SimClock(), count(1)
    worked_s: dict[str, float] = {}  # by node, until the policy was decided last

    def handle(mail: list[None]) -> float | None:
        for verifier in world.verifiers:
            verifier.segment.follow(_pool(world, verifier.name), world.policy)
        if world.variant.is_steered and next(ticks) % round(STEER_EVERY_S / LOOK_EVERY_S) == 0:
            after = steer(_load(world, worked_s, clock.time()), world.policy)
            world.policy = after.model_copy(update=dict(world.variant.policy))
            worked_s.update((box, world.network.machines[box].busy_s) for box in world.nodes)
        return LOOK_EVERY_S

    world.network.add(Machine("beat", clock, handle))
    world.network.send("beat", None, 0.0, world.setting.hop_s)


def _load(world: World, worked_s: Mapping[str, float], now_s: float) -> Load:
    """Return the load; a node's busy part is that of the time since it had worked for `worked_s`."""
    boxes = {box: world.network.machines[box] for box in (*world.nodes, FUSE)}
    return Load(
        drafters=len({name for names in world.nodes.values() for name in names}),
        mailboxes={
            box: MailboxLoad(waiting=len(one.mail), oldest_s=max(0.0, now_s - one.since_s) if one.mail else 0.0)
            for box, one in boxes.items()
        },
        busy={box: min(1.0, (boxes[box].busy_s - worked_s.get(box, 0.0)) / STEER_EVERY_S) for box in world.nodes},
        verifiers=tuple(verifier.segment.load() for verifier in world.verifiers),
    )


def _pool(world: World, mailbox: str) -> DrafterPool:
    """Collect the drafters for the verifier of `mailbox`, each node on a machine of its own."""
    is_here = world.device is not None and not world.device.all[-1].units  # no part of it is the drafters' own
    nodes = [
        _node(box, names, len(world.network.machines[box].mail), VERIFIERS if is_here else box)
        for box, names in world.nodes.items()
    ]
    model_free = model_free_of(world.variant, world.settings)
    return DrafterPool.of([*nodes, Node(FUSE, FUSE, "", 0.0, {})], TOKENIZER, model_free, VERIFIERS, mailbox)


def _node(mailbox: str, names: tuple[str, ...], waiting: int, host: str) -> Node:
    kind, _, name = mailbox.partition(":")
    info = {"drafters": names, "readers": names, "tokenizer": TOKENIZER, "waiting": waiting, "host": host}
    return Node(kind, name, "", 0.0, info)


def _send_jobs(world: World, jobs: list[DraftJob], at_s: float) -> None:
    for mailbox, message in jobs_by_mailbox(jobs, FUSE).items():
        world.network.send(mailbox, message, at_s, _near_s(world) if mailbox == FUSE else None)


def _near_s(world: World) -> float | None:
    """Return the hop between a verifier and the fuser: none on one host, else the network's."""
    return 0.0 if world.setting.is_hub else None


def _send_trees(world: World, trees: list[tuple[str, TreeMessage]], at_s: float, hop_s: float | None = None) -> None:
    boxes = [mailbox for mailbox, _ in trees]
    for mailbox, messages in trees_by_mailbox(zip(boxes, shaped(world, trees), strict=True)).items():
        for message in messages:
            world.network.send(mailbox, message, at_s, hop_s)
