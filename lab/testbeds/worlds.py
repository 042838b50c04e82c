"""Read the worlds of the papers' testbeds from JSON (`lab/worlds`): devices, models, links, placement, prices, loads.

Each number stands with its source, `[value, "source"]`, or "assumed". A world may be `like` another file of its folder,
which it changes in part.
"""

import json
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.config import ROOT

FOLDER = ROOT / "lab" / "worlds"


class Number(NamedTuple):
    value: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=3)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceSpec(Part):
    """A GPU: its data sheet, the parts of the peak rates that models reach, and its price."""

    bytes_per_s: Number
    flops: Number
    memory: Number  # bytes
    read_part: Number
    flop_part: Number
    launch_s: Number  # of a pass
    price_per_h: Number

    @property
    def read_rate(self) -> float:
        return self.bytes_per_s.value * self.read_part.value

    @property
    def flop_rate(self) -> float:
        return self.flops.value * self.flop_part.value


class ModelSpec(Part):
    layers: Number
    width: Number
    weight_bytes: Number
    kv_bytes: Number  # of a token
    row_flop: Number  # of a row, attention left out
    attention_flop: Number  # of a row and a cached token


class LinkSpec(Part):
    bits_per_s: Number
    latency_s: Number


class TargetSpec(Part):
    """The target on its devices: `stages` in a row, each divided among `tensor` devices."""

    model: str
    device: str
    stages: Number
    tensor: Number
    batches: Number  # in flight at once, each with its part of the sequences
    bus: str | None = None  # the link between these devices
    link: str | None = None  # the link to the node that routes and fuses
    host_s: Number  # of a step, beside the devices
    memory_part: Number  # of the memory, for weights and caches
    batch_tokens: Number | None = None  # rows of a step at most; None: as the policy has it

    @property
    def devices(self) -> int:
        return round(self.stages.value * self.tensor.value)


class DrafterSpec(Part):
    """A model drafter on `nodes` of one device each, of which one is simulated; no device: it is on the target's."""

    model: str
    device: str | None = None
    nodes: Number
    link: str | None = None
    host_s: Number  # of a guess, beside the device
    domain: str | None = None  # where it is at home; None: trained on the mixture


class SharedSpec(Part):
    units: Number
    splits: tuple[Number, ...]  # units for drafting
    reads_with: Number  # the part of the units that reads memory at full speed
    kappa: Number  # by which each side slows the other


class CheckpointSpec(Part):
    """A place in the layers where rows may leave, and the area under the ROC of a poor and of a good predictor."""

    depth: Number  # part of the layers before it
    poor: Number
    good: Number


class ExitSpec(Part):
    """Early exit (FASER): its checkpoints, how well they predict, and what they cost."""

    checkpoints: tuple[CheckpointSpec, ...]
    quality: Number  # from 0, the poor predictor, to 1, the good one
    lost: Number  # part of the right rows that leave
    look_layers: Number  # the prediction's operations for a row, in layers; rows leave so many layers later
    fixed_s: Number  # of a checkpoint: the compaction of the rows


class AcceptanceSpec(Part):
    """How often drafters are right: tokens a round, the target's own among them, of chains of `length`."""

    length: Number
    home: Number  # in the drafter's own domain
    elsewhere: Number  # in another one
    mixture: Number  # of a drafter without a domain
    texture: Number  # correlation of a token's hardness and the next one's
    correlation: Number  # of two drafters' margins, by the hardness of the token
    agreement: Number  # the chance that two wrong drafters guess the same token
    auc: Number  # the chance that a right guess has more confidence than a wrong one
    second: Number  # the chance that the second choice is right where the first is wrong
    spread: Number  # of requests' mean hardness, in standard deviations of a token's


class LoadSpec(Part):
    prompt_tokens: Number
    output_tokens: Number


class WorldSpec(Part):
    about: str
    devices: Mapping[str, DeviceSpec]
    models: Mapping[str, ModelSpec]
    links: Mapping[str, LinkSpec] = {}
    hop_s: Number  # one way between two processes, where no link stands for it
    target: TargetSpec
    drafters: Mapping[str, DrafterSpec]
    shared: SharedSpec | None = None
    exit: ExitSpec | None = None
    acceptance: AcceptanceSpec
    loads: Mapping[str, LoadSpec]
    paper: Mapping[str, str]  # what the paper reports, by comparison

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        wanted: list[tuple[str, str, Mapping[str, Any], str | None]] = [
            ("target.model", "model", self.models, self.target.model),
            ("target.device", "device", self.devices, self.target.device),
            ("target.bus", "link", self.links, self.target.bus),
            ("target.link", "link", self.links, self.target.link),
        ]
        for name, drafter in self.drafters.items():
            wanted += [
                (f"drafters.{name}.model", "model", self.models, drafter.model),
                (f"drafters.{name}.device", "device", self.devices, drafter.device),
                (f"drafters.{name}.link", "link", self.links, drafter.link),
            ]
            if (drafter.device is None) != (self.shared is not None):
                raise ValueError(f"drafters.{name}: no device means that it shares the target's as `shared` says")
            if (drafter.link is None) != (self.target.link is None):
                raise ValueError(f"drafters.{name}.link: either all nodes have a link or no node")
        for place, kind, known, name_of in wanted:
            if name_of is not None and name_of not in known:
                raise ValueError(f"{place}: no {kind} is named {name_of!r}, only {', '.join(sorted(known)) or 'none'}")
        if self.target.devices > self.target.stages.value and self.target.bus is None:
            raise ValueError("target.bus: tensor parallelism needs a link between the devices")
        return self

    def with_values(self, values: Mapping[str, float]) -> Self:
        """Return the world with other numbers at these places, e.g. `drafters.*.host_s` (`*`: all entries)."""
        changed = self.model_dump()
        for place, value in values.items():
            *path, last = place.split(".")
            for part in _parts(changed, path):
                part[last] = (value, "fitted")
        return type(self).model_validate(changed)

    @property
    def domains(self) -> list[str]:
        """List the domains of the drafters; `all` if no drafter has one."""
        return sorted({one.domain for one in self.drafters.values() if one.domain}) or ["all"]


def world_names(paper: str, folder: Path = FOLDER) -> list[str]:
    return sorted(path.stem for path in folder.glob(f"{paper}-*.json"))


def read_world(path: Path) -> WorldSpec:
    """Read a world. Raises OSError, ValueError with the place of the first fault."""
    try:
        return WorldSpec.model_validate(_merged(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f'{path.name}: {place}: {first["msg"]} (a number is [value, "source"])') from error


def _merged(path: Path) -> dict[str, Any]:
    """Return a file's JSON over that of the file it is like."""
    own: dict[str, Any] = json.loads(path.read_text())
    like = own.pop("like", None)
    return own if like is None else _over(_merged(path.with_name(f"{like}.json")), own)


def _parts(whole: dict[str, Any], path: Listed[str]) -> list[dict[str, Any]]:
    """List the objects at a path of names, in which `*` is any name."""
    found = [whole]
    for name in path:
        found = [each[own] for each in found for own in (each if name == "*" else (name,))]
    return found


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the leaves of `own` in their places; null removes one."""
    found = dict(base)
    for name, value in own.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict) and isinstance(found.get(name), dict):
            found[name] = _over(found[name], value)
        else:
            found[name] = value
    return found
