"""Read the fitted worlds (`lab/worlds/fitted.json`): values of free numbers that fit facts about a paper's baselines.

They were sampled and screened by the code of the commit that the file names; the file says how they were chosen.
"""

from collections.abc import Mapping
from pathlib import Path

from lab.testbeds.worlds import FOLDER, Part


class FittedLoad(Part):
    data: str
    batch: int
    texts: int
    seed: int


class FittedSpec(Part):
    """A world that fits a paper's baselines: values of the free numbers of another, and what it is run under."""

    like: str
    readings: tuple[str, ...]  # of the paper's baselines, which it fits
    sample: int  # its number among the sampled worlds
    load: FittedLoad
    facts: Mapping[str, tuple[float, float, float]]  # a baseline's figure, and the bounds that it has to lie in
    fit_error: float  # the largest distance of a fact from the middle of its bounds; 1: at a bound
    values: Mapping[str, float]


class FittedFile(Part):
    """The fitted worlds by name, and how they were chosen."""

    about: str
    commit: str  # where the code that sampled them is
    seed: int  # of the sampling
    worlds: Mapping[str, FittedSpec]


def read_fitted(folder: Path = FOLDER) -> Mapping[str, FittedSpec]:
    """Read the fitted worlds. Raises OSError, pydantic.ValidationError."""
    return FittedFile.model_validate_json((folder / "fitted.json").read_text()).worlds
