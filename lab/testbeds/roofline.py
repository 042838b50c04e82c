"""The testbeds' cost model: a roofline of bytes through memory and operations, whichever takes longer.

    pass of r rows     max(weights / bandwidth, r FLOP / peak) + launches + messages between the devices
    its contexts       KV bytes / bandwidth for each sequence, attention's operations / peak for each of its rows
    a guess            the same of a drafter for one row a sequence, plus its host's Python

Tensor parallelism divides bytes and operations and adds two all-reduces a layer. Stages follow each other, so that a
single pass takes as long as on one device. The parts of bandwidth and peak that are reached are the world's.
"""

from collections.abc import Iterable
from math import floor

from app.engine.step_costs import Reading, StepCosts
from lab.simulate.exits import Checkpoint, ExitCosts
from lab.simulate.shared_device import Sharing
from lab.testbeds.worlds import DeviceSpec, DrafterSpec, LinkSpec, ModelSpec, WorldSpec

MOST_ROWS = 4096
BATCHES = (*range(1, 33), 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512)  # of a guess


def step_costs(world: WorldSpec) -> StepCosts:
    """Return the target's step costs by rows: exact up to MOST_ROWS, a line beyond."""
    model, device = world.models[world.target.model], world.devices[world.target.device]
    read_s = model.weight_bytes.value / world.target.tensor.value / device.read_rate
    row_s = model.row_flop.value / world.target.tensor.value / device.flop_rate
    message_s, bus_row_s = _messages(world)

    def seconds(rows: int) -> float:
        return max(read_s, rows * row_s) + device.launch_s.value + message_s + rows * bus_row_s

    bend = floor(read_s / row_s)
    points = {rows: seconds(rows) for rows in (1, max(1, bend), bend + 1, max(bend + 2, MOST_ROWS))}
    return StepCosts(points, reading=reading_of(world))


def kv_tokens(world: WorldSpec, drafters: Iterable[str]) -> int:
    """Count the tokens whose keys and values fit beside the weights; drafters on the same devices cache them too."""
    target, model = world.target, world.models[world.target.model]
    beside = [world.models[one.model] for name in drafters if (one := world.drafters[name]).device is None]
    memory = target.devices * world.devices[target.device].memory.value * target.memory_part.value
    weights = sum(one.weight_bytes.value for one in (model, *beside))
    return max(0, floor((memory - weights) / sum(one.kv_bytes.value for one in (model, *beside))))


def guess_s(world: WorldSpec, name: str) -> dict[int, float]:
    """Return the seconds of one more guess of a drafter by sequences at once, contexts left out."""
    drafter, model, device = _drafter(world, name)
    read_s, row_s = model.weight_bytes.value / device.read_rate, model.row_flop.value / device.flop_rate
    beside_s = device.launch_s.value + drafter.host_s.value
    return {batch: max(read_s, batch * row_s) + beside_s for batch in BATCHES}


def context_s(world: WorldSpec, name: str) -> float:
    _, model, device = _drafter(world, name)
    return model.kv_bytes.value / device.read_rate


def prompt_token_s(world: WorldSpec, name: str) -> float:
    """Return the seconds in which a drafter reads a token of a prompt: operations / peak."""
    _, model, device = _drafter(world, name)
    return model.row_flop.value / device.flop_rate


def sharing(world: WorldSpec) -> Sharing | None:
    """Return the device that target and drafter share; None where each has its own."""
    if world.shared is None:
        return None
    model, device = world.models[world.target.model], world.devices[world.target.device]
    (name,) = world.drafters
    return Sharing(
        units=round(world.shared.units.value),
        splits=tuple(round(split.value) for split in world.shared.splits),
        row_compute_s=model.row_flop.value / world.target.tensor.value / device.flop_rate,
        token_compute_s=prompt_token_s(world, name),
        reads_with=world.shared.reads_with.value,
        kappa=world.shared.kappa.value,
        draft_token_s=guess_s(world, name),
    )


def exit_costs(world: WorldSpec) -> ExitCosts | None:
    """Return the checkpoints of a pass, each behind the layers of its prediction; None where rows cannot leave."""
    if world.exit is None:
        return None
    own = world.exit
    look = own.look_layers.value / world.models[world.target.model].layers.value
    quality = own.quality.value
    checkpoints = tuple(
        Checkpoint(min(1.0, one.depth.value + look), one.poor.value + quality * (one.good.value - one.poor.value))
        for one in own.checkpoints
    )
    return ExitCosts(checkpoints, own.lost.value, look, own.fixed_s.value)


def price_per_h(world: WorldSpec, drafters: tuple[str, ...]) -> float:
    """Return the price of an hour of the target's devices and of these drafters' nodes."""
    device = world.devices[world.target.device]
    return world.target.devices * device.price_per_h.value + sum(
        one.nodes.value * world.devices[one.device].price_per_h.value
        for one in map(world.drafters.__getitem__, drafters)
        if one.device is not None
    )


def peak_flops(world: WorldSpec, drafters: tuple[str, ...]) -> float:
    """Return the peak FLOP/s of the same devices, by which CoSine compares hardware."""
    return world.target.devices * world.devices[world.target.device].flops.value + sum(
        one.nodes.value * world.devices[one.device].flops.value
        for one in map(world.drafters.__getitem__, drafters)
        if one.device is not None
    )


def reading_of(world: WorldSpec) -> Reading:
    """Return the seconds that contexts add to a pass."""
    model, device = world.models[world.target.model], world.devices[world.target.device]
    tensor = world.target.tensor.value
    return Reading(
        model.kv_bytes.value / tensor / device.read_rate,
        model.attention_flop.value / tensor / device.flop_rate,
        share=1.0,
    )


def _messages(world: WorldSpec) -> tuple[float, float]:
    """Return the seconds of a pass's messages between devices, and of each row in them."""
    target, model = world.target, world.models[world.target.model]
    if target.bus is None or target.devices == 1:
        return 0.0, 0.0
    bus: LinkSpec = world.links[target.bus]
    tensor, stages = target.tensor.value, target.stages.value
    row_s = 8.0 * 2.0 * model.width.value / bus.bits_per_s.value  # a row's activations, two bytes each
    reduces = 2.0 * model.layers.value * (tensor > 1.0)
    hops = stages - 1.0
    moved = 2.0 * (tensor - 1.0) / tensor  # of a ring's all-reduce, over the data
    return bus.latency_s.value * (reduces + hops), row_s * (reduces * moved + hops)


def _drafter(world: WorldSpec, name: str) -> tuple[DrafterSpec, ModelSpec, DeviceSpec]:
    drafter = world.drafters[name]
    return drafter, world.models[drafter.model], world.devices[drafter.device or world.target.device]
