"""Name whole ways of speculating: a plan names the strategy of every stage.

`PACELINE_PLAN` is the name of a plan, or a TOML file that changes parts of one. Benchmarks and simulation read the
same plans.
"""

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

PlanName = Literal["pace", "cosine", "faser", "specinfer", "vanilla", "off"]
Routing = Literal["pace", "cosine", "all", "first"]
Fusion = Literal["tree", "token"]
Batching = Literal["pace", "cosine"]
Overlapping = Literal["auto", "none", "halves", "always-halves", "joint"]
Pruning = Literal["auto", "on", "off"]
Placement = Literal["apart", "together", "nodes"]
FASER_TOKENS = 8  # that its search chooses from at most
LENGTHS = r"^(marginal|faser|cosine|fixed:0|(fixed|tree):([1-9]|[1-5]\d|6[0-4]))$"
BASE = "base"  # the key of a plan file that names the plan it changes
Names = tuple[str, ...]


class Objective(BaseModel):
    """The parameters of CoSine's batch objective (papers 1.4); the paper does not give their values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token_weight: float = 1.0  # lambda, in the seconds that a token of plain decoding takes the whole pool
    max_s: float = 1.0  # T_max
    max_candidates: int = 64  # Gamma_max


class Plan(BaseModel):
    """A whole way of speculating, by the names of its strategies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: PlanName = Field(description="the plan that this one is, but for its changed parts")
    routing: Routing = Field(
        description="which model drafters draft: of those on other cores than the verifier's as many as pay, else one "
        "(pace); those of CoSine's matrix (cosine); all; or the first",
    )
    fusion: Fusion = Field(
        description="each drafter drafts and trees are merged (tree), or they share each token (token)"
    )
    lengths: str = Field(
        pattern=LENGTHS,
        description="draft lengths: every token that pays (marginal), FASER's search (faser), CoSine's control "
        "(cosine), chains of N tokens (fixed:N), whole trees N deep (tree:N)",
    )
    batching: Batching = Field(
        description="what goes into a step: the most tokens a second (pace), or CoSine's objective (cosine)"
    )
    overlap: Overlapping = Field(
        description="work while a verdict is pending: drafters on other cores guess what may follow (auto); one half "
        "of the sequences drafts while the other is verified where that is no slower (halves) or always "
        "(always-halves); none; or FASER's controller of lengths, chunk and split (joint)",
    )
    pruning: Pruning = Field("off", description="drop draft tokens in the middle of a pass of the target")
    pruner: str = Field(
        "smol-pruning", description="the rank test of early exit: folder of `fit-pruning`, in drafters/, or none"
    )
    model_free: bool = Field(False, description="n-gram lookup drafts as well")
    states: bool = Field(False, description="drafters that read the target's hidden state get it")
    drafters: Names = Field(("smol-general",), description="model drafters, if PACELINE_DRAFTERS names none")
    drafters_per_sequence: int = Field(
        4, ge=1, description="most model drafters of a round, on other cores than the verifier's"
    )
    placement: Placement = Field(
        "apart",
        description="processes that `up` starts: a verifier and a drafter (apart), one that is both (together), or one "
        "for each drafter (nodes)",
    )
    partition: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        0,
        description="cores, or a GPU's multiprocessors, kept for drafting where one process is both; 0: none; auto: "
        "as FASER's controller chooses",
    )
    objective: Objective = Field(Objective(), description="parameters of CoSine's batches")

    @model_validator(mode="after")
    def _can_be_joint(self) -> Self:
        if self.overlap == "joint" and self.lengths != "faser" and not self.lengths.startswith("fixed:"):
            raise PydanticCustomError("plan", "overlap: joint needs lengths: faser or fixed:N")
        if self.partition == "auto" and self.overlap != "joint":
            raise PydanticCustomError("plan", "partition: auto needs overlap: joint")
        return self

    def __str__(self) -> str:
        """Return what `PACELINE_PLAN` takes for this plan: its name, or a TOML table of its name and changes."""
        return _toml({BASE: self.name, **self.changes()}) if self.changes() else self.name

    def changes(self) -> dict[str, Any]:
        """Return the parts in which this plan differs from the one of its name."""
        usual = PLANS[self.name]
        return {part: value for part, value in self if value != getattr(usual, part)}

    def changed(self, **parts: Any) -> "Plan":
        """Raises ValidationError."""
        return Plan.model_validate({**dict(self), **parts})

    @property
    def drafts(self) -> bool:
        return self.lengths != "fixed:0"

    @property
    def stated_tokens(self) -> int:
        """Return the draft tokens that a sequence may have at any load; 0: as the policy bounds them."""
        if self.lengths == "faser":
            return FASER_TOKENS
        return int(self.lengths.partition(":")[2] or 0)

    @property
    def drafts_whole(self) -> bool:
        """Tell whether drafters draft all tokens that a rule wants, however unlikely.

        Tokens that several drafters share are never drafted so.
        """
        return (":" in self.lengths or self.lengths == "faser") and self.fusion == "tree"


PLANS: Mapping[PlanName, Plan] = {
    plan.name: plan
    for plan in (
        Plan(
            name="pace",
            routing="pace",
            fusion="tree",
            lengths="marginal",
            batching="pace",
            overlap="auto",
            model_free=True,
            states=True,
        ),
        # CoSine (arXiv:2503.10325): every token shared by nodes, routed by a matrix of scores, lengths by the
        # verifier's idleness, batches by its objective, one drafted while another is verified where that is no slower.
        Plan(
            name="cosine",
            routing="cosine",
            fusion="token",
            lengths="cosine",
            batching="cosine",
            overlap="halves",
            drafters=("smol-general", "smol-code", "smol-prose", "smol-chat"),
            placement="nodes",
        ),
        # FASER (arXiv:2604.20503): a length for each request, early exit by its rank test where that pays, and one
        # controller of lengths, chunk and split.
        Plan(
            name="faser",
            routing="first",
            fusion="tree",
            lengths="faser",
            batching="pace",
            overlap="joint",
            pruning="auto",
        ),
        # SpecInfer (arXiv:2305.09781): all drafters guess apart, and the union of their guesses is verified.
        Plan(name="specinfer", routing="all", fusion="tree", lengths="tree:4", batching="pace", overlap="none"),
        # Speculative decoding as first published (arXiv:2211.17192): one drafter, chains of one length.
        Plan(name="vanilla", routing="first", fusion="tree", lengths="fixed:4", batching="pace", overlap="none"),
        Plan(name="off", routing="first", fusion="tree", lengths="fixed:0", batching="pace", overlap="none"),
    )
}
PARTS = frozenset(Plan.model_fields) - {"name"}


def parse_plan(value: object) -> object:
    """Make a plan of a name, a TOML file, or a TOML table, as text or parsed. Raises PydanticCustomError."""
    if isinstance(value, Path):
        return _read(value)
    if isinstance(value, Mapping):
        return _of_table(value, "")
    if not isinstance(value, str):
        return value
    if (named := _named(value)) is not None:
        return named
    if value.startswith("{"):
        try:
            return _of_table(tomllib.loads(f"plan = {value}")["plan"], "")
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise _wrong(f"{value} is not a TOML table: {error}") from error
    if value.endswith(".toml") or "/" in value:
        return _read(Path(value).expanduser())
    raise _wrong(f"there is no plan {value!r}{_close(value, PLANS)}; it is one of {', '.join(PLANS)}, or a TOML file")


AnyPlan: TypeAlias = Annotated[Plan, BeforeValidator(parse_plan)]


def _named(name: object) -> Plan | None:
    return next((plan for plan in PLANS.values() if plan.name == name), None)


def _read(file: Path) -> Plan:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(f"the plan {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _wrong(f"the plan {file} is not valid TOML: {error}") from error
    return _of_table(table, f"{file}: ")


def _of_table(table: Mapping[str, Any], place: str) -> Plan:
    """Make the plan of a table; errors begin with `place`."""
    name = table.get(BASE, "pace")
    base = _named(name)
    if base is None:
        raise _wrong(f"{place}{BASE}: there is no plan {name!r}{_close(str(name), PLANS)}")
    parts = {part: value for part, value in table.items() if part != BASE}
    for part in parts:
        if part not in PARTS:
            raise _wrong(f"{place}{part}: a plan has no such part{_close(part, PARTS)}")
    try:
        return base.changed(**parts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = f"{first['loc'][0]}: " if first["loc"] else ""
        raise _wrong(f"{place}{key}{first['msg']}") from error


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("plan", "{text}", {"text": text})


def _close(name: str, known: Mapping[Any, object] | frozenset[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; {close[0]}, perhaps" if close else ""


def _toml(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(own)}" for key, own in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
