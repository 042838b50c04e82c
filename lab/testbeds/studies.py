"""Name what is run for a paper's bands: facts that worlds must fit, loads, numbers that are moved, assumptions varied.

Data only. What runs it is `lab.testbeds.fitted`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lab.testbeds.cost_model import CostModel
from lab.testbeds.sample import Fact


class Load(NamedTuple):
    """Closed loops of `batch` requests of a data set, `texts` in all."""

    data: str
    batch: int
    texts: int


@dataclass(frozen=True, slots=True)
class Variation:
    """Assumptions changed together, in the median of the worlds that fit."""

    name: str
    values: Mapping[str, float] = field(default_factory=dict)  # of free numbers
    load: Load | None = None  # None: that under which numbers are moved
    facts: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # other bounds of a reading's facts


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read what a paper's baselines were: facts that worlds must fit, and the baselines' arms."""

    name: str
    facts: tuple[Fact, ...]
    headlines: Mapping[str, float]  # comparison: the paper's number
    sensitive: tuple[str, str]  # a comparison, and the baseline that it is over where one number is moved


@dataclass(frozen=True, slots=True)
class Study:
    """What is run for a paper: worlds to sample, readings, loads in turn, and the order of its ablations."""

    worlds: tuple[str, ...]
    readings: tuple[Reading, ...]
    chosen: int  # worlds of a reading
    loads: tuple[Load, ...]
    left_out: tuple[str, ...]  # arms
    moved: Load  # under which one number at a time is moved
    numbers: tuple[str, ...]  # those that are
    order: tuple[str, ...]  # arms by tokens/s, falling, as the paper has them
    variations: tuple[Variation, ...] = ()


def _over_off(arm: str, batch: int) -> Callable[[CostModel], np.ndarray]:
    def found(model: CostModel) -> np.ndarray:
        off = model.predict("off", batch, 256, 128)
        return model.predict(arm, batch, 256, 128).tokens_per_s / off.tokens_per_s

    return found


def _verifying(model: CostModel) -> np.ndarray:
    return model.predict("vanilla", 256, 171, 98, 6).verifying


def _rejected(model: CostModel) -> np.ndarray:
    return model.predict("vanilla", 32, 171, 98, 6).rejected


def _cosine_reading(name: str, arm: str, latency: str, throughput: str) -> Reading:
    facts = tuple(
        Fact(f"{arm} over off, batch {batch}", 2.40 / 1.1, 2.91 * 1.1, "quotients of paper 1.6", _over_off(arm, batch))
        for batch in (1, 4, 16)
    )
    return Reading(name, facts, {latency: 1.0 - 0.232, throughput: 1.325}, (throughput, arm))


VERIFYING = "verifying, part of a round of 256 at length 6"
# What FASER's headline may hang on: none of it is said by the paper.
NO_CONTENTION = {"shared.kappa": 0.0}
SLOW_DRAFTER = {"drafters.*.host_s": 15e-3}
LESS_VERIFYING = {VERIFYING: (0.3, 0.7)}
SHORT = Load("humaneval", 16, 16)

STUDIES = {
    "cosine": Study(
        ("cosine-70b", "cosine-70b-tensor"),
        (
            _cosine_reading(
                "all experts", "specinfer", "latency, cosine over the best baseline", "headline, on the same machines"
            ),
            _cosine_reading(
                "one drafter",
                "vanilla, mixture",
                "latency, cosine over the best of one drafter",
                "tokens/s, cosine over the best of one drafter",
            ),
        ),
        6,
        (Load("offline", 4, 12), Load("offline", 16, 16), Load("offline", 1, 10)),
        ("vanilla", "cosine without routing", "cosine without control", *(f"cosine of {n}" for n in range(1, 5))),
        Load("offline", 4, 10),
        (
            "drafters.*.host_s",
            "devices.a100.flop_part",
            "acceptance.home",
            "acceptance.mixture",
        ),
        ("cosine", "cosine without fusion", "cosine without sharing"),
    ),
    "faser": Study(
        ("faser-32b",),
        (
            Reading(
                "as stated",
                (
                    Fact(
                        VERIFYING,
                        0.73,
                        0.88,
                        "paper 2: up to 83 %",
                        _verifying,
                    ),
                    Fact("rejected, batch 32, length 6", 0.5, 0.8, "paper 2: more than half", _rejected),
                ),
                {"latency over the best baseline": 1.0 / 1.92, "tokens/s over the best baseline": 1.53},
                ("tokens/s over the best baseline", "vanilla"),
            ),
        ),
        4,
        (Load("longbench", 24, 24), Load("humaneval", 64, 64), Load("sharegpt", 32, 32)),
        (),
        Load("longbench", 16, 16),
        (
            "drafters.*.host_s",
            "exit.quality",
            "acceptance.mixture",
        ),
        ("faser", "faser, lengths", "faser, lengths and exit", "vanilla of 6"),
        (
            Variation("no contention", NO_CONTENTION),
            Variation("prompts short", load=SHORT),
            Variation("a guess takes its host 15 ms", SLOW_DRAFTER),
            Variation("verifying 0.3 to 0.7 of a round", facts=LESS_VERIFYING),
            Variation("less verifying, no contention, prompts short", NO_CONTENTION, SHORT, LESS_VERIFYING),
            Variation(
                "the same, the drafter slow and exits at their best",
                {**NO_CONTENTION, **SLOW_DRAFTER, "exit.quality": 1.0},
                SHORT,
                LESS_VERIFYING,
            ),
            Variation(
                "the same, 32 at once",
                {**NO_CONTENTION, **SLOW_DRAFTER, "exit.quality": 1.0},
                Load("humaneval", 32, 32),
                LESS_VERIFYING,
            ),
        ),
    ),
}
