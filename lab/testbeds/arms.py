"""Name the arms of the testbeds: the plans that also run live, their ablations, and the paper's comparisons.

Data only. Model-free drafters are left out everywhere, since made texts repeat nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from lab.cooperate.variants import OFF, Variant
from lab.testbeds.worlds import WorldSpec

COMMON = {"max_sequences": 512, "pruning": "off"}
PATIENCE_S = 10.0  # that a paper's plan waits for drafts at most; before that, for three times what they usually take
LENGTHS = (1, 2, 3, 4, 5, 6, 8)  # of baselines, tried on other data than they are measured on
ADASPEC_MOST = 8  # tokens that it drafts
MICRO_RUNS = (1, 2, 3, 4)  # tokens of PipeInfer's
Figure = Literal["request_s", "tokens_per_s"]
System = Literal[
    "paceline",
    "adaspec",  # a plan whose drafters stop as AdaSpec has it (`lab.testbeds.adaspec`)
    "smurfs",  # a plan whose drafters vote and whose length climbs, as Smurfs has it (`lab.testbeds.smurfs`)
    "pipeinfer",  # no plan: a simulation of its own (`lab.testbeds.pipeinfer`)
]


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm; `lengths`: the settings of which the best on other data is used, none where the plan decides.

    `one_of`: the drafters of which the best on other data is the one asked; none: the variant's own. `ways`: settings
    of which those that are best on other data are used; `way`: those that were chosen. `system`: what runs it.
    """

    variant: Variant
    lengths: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    system: System = "paceline"
    ways: tuple[Mapping[str, object], ...] = ()
    way: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return its name."""
        return self.variant.name

    @property
    def drafters(self) -> tuple[str, ...]:
        """Return the model drafters that it can ask."""
        return self.variant.drafters or ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of an arm over that of the best of others; `paper`: its name among the paper's figures."""

    paper: str
    figure: Figure
    arm: str
    over: tuple[str, ...]
    cost: Literal["price_per_h", "peak_flops"] | None = None  # what both are divided by; None: nothing


def cosine_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of CoSine's: experts of domains, and a drafter of the mixture."""
    experts = tuple(name for name, one in world.drafters.items() if one.domain)
    mixture = tuple(name for name, one in world.drafters.items() if not one.domain)[:1]
    trees = tuple(f"tree:{n}" for n in LENGTHS)
    every: dict[str, object] = {"drafters_per_sequence": len(experts)}  # each has a node: any arm may ask all
    ablations: dict[str, dict[str, object]] = {
        "cosine": every,
        "cosine without sharing": {**every, "fusion": "tree"},
        "cosine without routing": {**every, "routing": "all"},
        "cosine without control": {"lengths": "tree:4", "drafters_per_sequence": 2},
    }
    return [
        _off(),
        replace(_vanilla("vanilla", experts[:1]), one_of=experts),
        _vanilla("vanilla, mixture", mixture),
        Arm(_plan("specinfer", "specinfer", experts, every), trees),
        replace(_pipeinfer("pipeinfer", experts[:1]), one_of=experts),
        _pipeinfer("pipeinfer, mixture", mixture),
        _smurfs(experts, every, ({"overlap": "always-halves"},)),
        *(Arm(_plan(name, "cosine", experts, changes)) for name, changes in ablations.items()),
        Arm(_plan("cosine without fusion", "cosine", experts, {**every, "fusion": "tree"}, without="fusion")),
        *(
            Arm(_plan(f"cosine of {n}", "cosine", experts[:n], {"drafters_per_sequence": n}))
            for n in range(1, len(experts))
        ),
        Arm(_plan("pace", "pace", experts, every)),
        Arm(_plan("pace, mixture", "pace", mixture)),
    ]


def faser_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of FASER's: its parts stacked on a chain of one length."""
    drafters = tuple(world.drafters)
    splits = [round(own.value) for own in world.shared.splits] if world.shared else [0]
    parts: dict[str, dict[str, object]] = {  # its controller is its own: no beat steers it
        "faser, lengths": {"overlap": "none"},
        "faser, lengths and exit": {"overlap": "none", "pruning": "auto"},
        "faser, lengths and overlap": {"partition": "auto"},
        "faser": {"partition": "auto", "pruning": "auto"},
    }
    return [
        _off(),
        _vanilla("vanilla", drafters),
        Arm(_plan("vanilla of 6", "vanilla", drafters, {"lengths": "fixed:6"})),
        Arm(_plan("adaspec", "vanilla", drafters, {"lengths": f"fixed:{ADASPEC_MOST}"}), system="adaspec"),
        _smurfs(drafters, {}, tuple({"overlap": "always-halves", "partition": units} for units in splits)),
        *(Arm(replace(_plan(name, "faser", drafters, changes), is_steered=False)) for name, changes in parts.items()),
        Arm(_plan("pace", "pace", drafters, {"pruning": "auto"})),
    ]


BASELINES = (OFF, "vanilla", "specinfer", "pipeinfer")
ONE_DRAFTER = (OFF, "vanilla, mixture", "pipeinfer, mixture")  # if the paper's baselines had no experts to ask
COSINE = (
    Comparison("latency, cosine over the best baseline", "request_s", "cosine", BASELINES),
    Comparison("latency, cosine over the best of one drafter", "request_s", "cosine", ONE_DRAFTER),
    Comparison("tokens/s, cosine over the best of one drafter", "tokens_per_s", "cosine", ONE_DRAFTER),
    Comparison("tokens/s, cosine over specinfer", "tokens_per_s", "cosine", ("specinfer",)),
    Comparison("headline, on the same machines", "tokens_per_s", "cosine", BASELINES),
    Comparison("tokens/s, cosine over off", "tokens_per_s", "cosine", (OFF,)),
    Comparison("tokens/s, specinfer over off, by quotients", "tokens_per_s", "specinfer", (OFF,)),
    Comparison("tokens/s, pipeinfer over specinfer, by quotients", "tokens_per_s", "pipeinfer", ("specinfer",)),
    Comparison("tokens/s, the same of one drafter", "tokens_per_s", "pipeinfer, mixture", ("vanilla, mixture",)),
    Comparison("tokens/s, smurfs over specinfer", "tokens_per_s", "smurfs", ("specinfer",)),
    Comparison("tokens/s without cooperation", "tokens_per_s", "cosine without sharing", ("cosine",)),
    Comparison("tokens/s without fusion", "tokens_per_s", "cosine without fusion", ("cosine",)),
    Comparison("headline, at equal cost", "tokens_per_s", "cosine", BASELINES, "price_per_h"),
    Comparison("headline, at equal peak compute", "tokens_per_s", "cosine", BASELINES, "peak_flops"),
    Comparison("headline, at equal cost, of one drafter", "tokens_per_s", "cosine", ONE_DRAFTER, "price_per_h"),
    Comparison("latency, pace over cosine", "request_s", "pace", ("cosine",)),
    Comparison("tokens/s, pace over cosine", "tokens_per_s", "pace", ("cosine",)),
    Comparison("tokens/s, pace over the best baseline", "tokens_per_s", "pace", BASELINES),
    Comparison("the same at equal cost", "tokens_per_s", "pace", BASELINES, "price_per_h"),
    Comparison("tokens/s, pace over the best of one drafter", "tokens_per_s", "pace", ONE_DRAFTER),
    Comparison("pace over the best of one drafter, at equal cost", "tokens_per_s", "pace", ONE_DRAFTER, "price_per_h"),
    Comparison(
        "tokens/s, pace of the mixture over the best of one drafter", "tokens_per_s", "pace, mixture", ONE_DRAFTER
    ),
    Comparison("tokens/s, the mixture's drafter over cosine", "tokens_per_s", "vanilla, mixture", ("cosine",)),
)
WITHOUT_OFF = ("vanilla", "vanilla of 6", "adaspec", "smurfs")  # what FASER is compared with
FASER = (
    Comparison("latency over the best baseline", "request_s", "faser", WITHOUT_OFF),
    Comparison("tokens/s over the best baseline", "tokens_per_s", "faser", WITHOUT_OFF),
    Comparison("latency over the best baseline or off", "request_s", "faser", (OFF, *WITHOUT_OFF)),
    Comparison("tokens/s over the best baseline or off", "tokens_per_s", "faser", (OFF, *WITHOUT_OFF)),
    Comparison("latency over vanilla", "request_s", "faser", ("vanilla",)),
    Comparison("lengths alone, over vanilla", "tokens_per_s", "faser, lengths", ("vanilla",)),
    Comparison("lengths and early exit, over vanilla", "tokens_per_s", "faser, lengths and exit", ("vanilla",)),
    Comparison("lengths alone, over vanilla of 6", "tokens_per_s", "faser, lengths", ("vanilla of 6",)),
    Comparison(
        "lengths and early exit, over vanilla of 6", "tokens_per_s", "faser, lengths and exit", ("vanilla of 6",)
    ),
    Comparison("all three, over vanilla of 6", "tokens_per_s", "faser", ("vanilla of 6",)),
    Comparison("latency of all three, over vanilla of 6", "request_s", "faser", ("vanilla of 6",)),
    Comparison("lengths and overlap, over vanilla", "tokens_per_s", "faser, lengths and overlap", ("vanilla",)),
    Comparison("all three, over vanilla", "tokens_per_s", "faser", ("vanilla",)),
    Comparison("tokens/s, vanilla over off", "tokens_per_s", "vanilla", (OFF,)),
    Comparison("tokens/s, adaspec over vanilla", "tokens_per_s", "adaspec", ("vanilla",)),
    Comparison("tokens/s, smurfs over vanilla", "tokens_per_s", "smurfs", ("vanilla",)),
    Comparison("latency, pace over faser", "request_s", "pace", ("faser",)),
    Comparison("tokens/s, pace over faser", "tokens_per_s", "pace", ("faser",)),
    Comparison("tokens/s, pace over the best baseline", "tokens_per_s", "pace", (OFF, *WITHOUT_OFF)),
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The arms of a paper's world, and what is compared."""

    arms: Callable[[WorldSpec], list[Arm]]
    comparisons: tuple[Comparison, ...]


ARMS = {"cosine": Evaluation(cosine_arms, COSINE), "faser": Evaluation(faser_arms, FASER)}


def _off() -> Arm:
    return Arm(Variant(OFF, {**COMMON, "plan": "off"}, drafters=(), model_free=(), speculates=False))


def _vanilla(name: str, drafters: tuple[str, ...]) -> Arm:
    return Arm(_plan(name, "vanilla", drafters), tuple(f"fixed:{n}" for n in LENGTHS))


def _pipeinfer(name: str, drafters: tuple[str, ...]) -> Arm:
    sizes = tuple(f"micro:{n}" for n in MICRO_RUNS)
    return Arm(Variant(name, COMMON, drafters=drafters, model_free=()), sizes, system="pipeinfer")


def _smurfs(drafters: tuple[str, ...], changes: Mapping[str, object], halves: tuple[Mapping[str, object], ...]) -> Arm:
    """Return the arm, which drafts for one half beside the other in one of these ways, or for all in turn."""
    return Arm(_plan("smurfs", "specinfer", drafters, changes), system="smurfs", ways=({"overlap": "none"}, *halves))


def _plan(
    name: str,
    plan: str,
    drafters: tuple[str, ...],
    changes: Mapping[str, object] = MappingProxyType({}),
    without: Literal["fusion"] | None = None,
) -> Variant:
    if plan == "pace":
        return Variant(name, {**COMMON, "plan": plan, **changes, "model_free": False}, drafters=drafters, model_free=())
    settings, policy = {**COMMON, "plan": plan, **changes}, {"draft_wait_s": PATIENCE_S}
    return Variant(name, settings, drafters=drafters, model_free=(), without=without, policy=policy)
