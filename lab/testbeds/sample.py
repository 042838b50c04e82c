"""Sample worlds within the bounds of their free numbers, and keep those that agree with a paper's baselines.

Facts are quotients among baselines and what is said of their drafts; the paper's own gains are never among them.
Of those that fit, the one nearest to the median of all and the ones farthest from all chosen so far are simulated.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace

import numpy as np

from lab.testbeds.cost_model import CostModel
from lab.testbeds.worlds import WorldSpec

Values = Mapping[str, float]
PRICE = "price_per_h"
WIDE = 8.0  # bounds whose quotient is larger are sampled by their logarithm


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure of the baselines, and between what it may lie."""

    name: str
    low: float
    high: float
    source: str
    of: Callable[[CostModel], np.ndarray]  # (W,)


@dataclass(frozen=True, slots=True)
class Fit:
    """Sampled worlds: their values, which of them fit, each fact's figure in each, and between what each may lie."""

    worlds: Listed[WorldSpec]
    model: CostModel  # of these worlds
    values: Listed[Values]
    fits: np.ndarray  # (W,) bool
    found: Mapping[str, np.ndarray]
    bounds: Mapping[str, tuple[float, float]]

    def within(self, bounds: Mapping[str, tuple[float, float]]) -> "Fit":
        """Return the fit with other bounds of these facts."""
        every = {**self.bounds, **bounds}
        return replace(self, fits=_fits(self.found, every), bounds=every)

    def chosen(self, count: int) -> list[int]:
        """Return fitting worlds: that nearest to the median, then each the farthest from those before it.

        Prices count for nothing there, since they change no run.
        """
        fitting = [int(i) for i in np.flatnonzero(self.fits)]
        if not fitting:
            return []
        names = [name for name in self.values[0] if not name.endswith(PRICE)]
        points = np.array([[self.values[i][name] for name in names] for i in fitting])
        points = points.argsort(axis=0).argsort(axis=0) / max(1, len(fitting) - 1)  # ranks: bounds differ in scale
        chosen = [int(np.abs(points - 0.5).sum(axis=1).argmin())]
        while len(chosen) < min(count, len(fitting)):
            apart = np.min([np.abs(points - points[one]).sum(axis=1) for one in chosen], axis=0)
            chosen.append(int(apart.argmax()))
        return [fitting[one] for one in chosen]


def sampled(world: WorldSpec, count: int, seed: int) -> list[dict[str, float]]:
    """Return values of the free numbers: in each number, one in each of `count` equal parts of its bounds."""
    draws = np.random.default_rng(seed)
    columns = {}
    for place, (low, high, _) in world.free.items():
        parts = (draws.permutation(count) + draws.random(count)) / count
        is_wide = low > 0.0 and high / low > WIDE
        columns[place] = low * (high / low) ** parts if is_wide else low + (high - low) * parts
    return [{place: float(column[i]) for place, column in columns.items()} for i in range(count)]


def fitted(world: WorldSpec, readings: Listed[Listed[Fact]], count: int, seed: int) -> list[Fit]:
    """Sample worlds like this one, and tell which of them agree with all facts, by reading of a paper."""
    values = sampled(world, count, seed)
    worlds = [world.with_values(own) for own in values]
    model = CostModel(worlds, seed)
    return [_fit(worlds, values, model, facts) for facts in readings]


def moved(world: WorldSpec, facts: Listed[Fact], seed: int) -> dict[str, dict[str, list[float]]]:
    """Return each fact's figure with each free number, alone, at its bounds; first what moves a fact the farthest.

    How far is measured by how wide the fact's own bounds are.
    """
    worlds = [world.with_values({place: at}) for place, own in world.free.items() for at in (own.low, own.high)]
    model = CostModel(worlds, seed)
    found = {fact.name: fact.of(model) for fact in facts}
    width = {fact.name: fact.high - fact.low for fact in facts}
    by_place = {
        place: {name: [round(float(own[2 * i + side]), 4) for side in (0, 1)] for name, own in found.items()}
        for i, place in enumerate(world.free)
    }
    return dict(
        sorted(
            by_place.items(),
            key=lambda item: -max(abs(high - low) / width[name] for name, (low, high) in item[1].items()),
        )
    )


def _fit(worlds: Listed[WorldSpec], values: Listed[Values], model: CostModel, facts: Listed[Fact]) -> Fit:
    found = {fact.name: fact.of(model) for fact in facts}
    bounds = {fact.name: (fact.low, fact.high) for fact in facts}
    return Fit(worlds, model, values, _fits(found, bounds), found, bounds)


def _fits(found: Mapping[str, np.ndarray], bounds: Mapping[str, tuple[float, float]]) -> np.ndarray:
    """Tell of each world whether all facts lie within their bounds; (W,) bool."""
    return np.all([(found[name] >= low) & (found[name] <= high) for name, (low, high) in bounds.items()], axis=0)
