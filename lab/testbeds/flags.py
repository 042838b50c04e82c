"""Say where a paper's numbers do not fit each other, by the arithmetic of its worlds, to stand beside every result."""

from collections.abc import Mapping

from lab.testbeds.roofline import kv_tokens, reading_of, step_costs
from lab.testbeds.worlds import LoadSpec, WorldSpec

FASER_RATE = 26.0  # requests/s; paper 2.5
FASER_BATCH = 128  # more than 40 % of ShareGPT's batches are larger; paper 2.5
PETA = 1e15
COSINE = (
    "LLaMA-68M has a vocabulary of 32,000 tokens, the 70B that it drafts for one of 128,256. Up to 4.71 times vLLM "
    "with drafters of at most 3.20 tokens a round asks that fusion adds half again, or that vLLM was placed worse than "
    "the target. The headline (-23.2 % latency) is below the paper's own offline figure (-27.1 %). SpecInfer at 2.40 "
    "to 2.91 of plain decoding follows from quotients of ranges, and which drafters it had is not said."
)


def flags(paper: str, worlds: Mapping[str, WorldSpec]) -> str:
    """Return a paragraph of what does not fit, and the largest rates of these worlds."""
    own = _faser(next(iter(worlds.values()))) if paper == "faser" else COSINE
    return (
        f"Where the paper's numbers do not fit each other: {own} The largest rates that can be served, by plain "
        "decoding with a full cache (and by computing alone, at the devices' peak): "
        f"{'; '.join(_rates(name, world) for name, world in worlds.items())}.\n"
    )


def servable(world: WorldSpec, load: LoadSpec) -> tuple[float, float]:
    """Return requests/s: of plain decoding with a full cache, and of computing alone at the peak.

    The cache full, each step has a row of every sequence, the prompts of those that are new, and all stages at work.
    """
    model, device, target = world.models[world.target.model], world.devices[world.target.device], world.target
    prompt, output = load.prompt_tokens.value, load.output_tokens.value
    costs, reading = step_costs(world), reading_of(world)
    at_once = max(1, int(kv_tokens(world, ()) / (prompt + output / 2.0)))
    begun = at_once / output  # in each step
    contexts_s = at_once * (prompt + output / 2.0) * (reading.token_s + reading.row_token_s)
    step_s = costs.seconds(round(at_once + begun * prompt)) + contexts_s + begun * prompt**2 * reading.row_token_s / 2.0
    peak = target.devices * device.flops.value / ((prompt + output) * model.row_flop.value)
    return target.stages.value * begun / step_s, peak


def _rates(name: str, world: WorldSpec) -> str:
    found = {data: servable(world, load) for data, load in world.loads.items()}
    return f"{name} " + ", ".join(f"{plain:.1f}/s of {data} ({peak:.1f})" for data, (plain, peak) in found.items())


def _faser(world: WorldSpec) -> str:
    model, device = world.models[world.target.model], world.devices[world.target.device]
    peta_s = FASER_RATE * model.row_flop.value / PETA  # FLOP/s of a token in each request
    prompts = {name: load.prompt_tokens.value * peta_s for name, load in world.loads.items()}
    outputs = [load.output_tokens.value * peta_s for load in world.loads.values()]
    sharegpt = world.loads["sharegpt"]
    mean = sharegpt.prompt_tokens.value + sharegpt.output_tokens.value / 2.0
    room = [int(kv_tokens(world, drafters) / mean) for drafters in ((), tuple(world.drafters))]
    by_data = ", ".join(f"{value:.2f}e15 FLOP/s of {name}" for name, value in prompts.items())
    peak = world.target.devices * device.flops.value / PETA
    return (
        f"{FASER_RATE:g} requests/s of {world.target.model} ask for {by_data} for their prompts, and "
        f"{min(outputs):.2f}e15 to {max(outputs):.2f}e15 more for their output, where the peak is {peak:.2f}e15; so "
        f"the rate is a free number. The memory holds {room[0]} sequences of ShareGPT, {room[1]} with the drafter's "
        f"cache beside, where more than 40 % of its batches are said to be above {FASER_BATCH}. Throughput over "
        "vanilla goes from 1.35 to 1.22 when early exit is added and to 1.60 with overlap: rows that are not "
        "cumulative, or a slip."
    )
