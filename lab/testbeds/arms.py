"""Name the arms of the testbeds: the plans that run live, their ablations, and the papers' baselines.

Data only. No arm uses n-gram tables, since made texts repeat nothing, and beat steers none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lab.testbeds.worlds import WorldSpec
from lab.ways import OFF, WAYS, Variant

COMMON = {"pruning": "off"}
PATIENCE_S = 10.0  # that a paper's plan waits for drafts at most,
PATIENT = 1000.0  # and otherwise so many times the usual time of drafting
LENGTHS = (1, 2, 3, 4, 5, 6, 8)  # of chains and trees
MICRO_RUNS = (1, 2, 3, 4)  # tokens of a micro-run of PipeInfer's
# What runs an arm (`lab.testbeds.play`). Chains: Paceline, whose drafters give no second-best guesses.
System = Literal["paceline", "chains", "adaspec", "smurfs", "pipeinfer"]
Choice = Mapping[str, Any]  # settings and their values, a variant's `drafters` or `length`, or an arm's `system`
Axes = tuple[tuple[Choice, ...], ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """A variant, and what is left to choose on other data: on each axis in turn, the fastest."""

    variant: Variant
    axes: Axes = ()
    system: System = "paceline"
    is_coupled: bool = False  # one batch; the target and each drafter work in turn
    choice: Choice = field(default_factory=dict)  # made on the axes

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def drafters(self) -> tuple[str, ...]:
        return self.variant.drafters or ()

    @property
    def chosen(self) -> str:
        return "; ".join(
            f"{name} {value if isinstance(value, str | int) else ', '.join(value)}"
            for name, value in self.choice.items()
        )

    def at(self, choices: Iterable[Choice]) -> "Arm":
        """Return the arm with these choices, and no axes."""
        choice: dict[str, Any] = {name: value for one in choices for name, value in one.items()}
        settings = dict(choice)
        own: dict[str, Any] = {"length": settings.pop("length")} if "length" in settings else {}
        if "drafters" in settings:
            own["drafters"] = tuple(settings.pop("drafters"))
        system = settings.pop("system", self.system)
        variant = replace(self.variant, changes={**self.variant.changes, **settings}, **own)
        return replace(self, variant=variant, axes=(), system=system, choice=choice)


CHAINS: tuple[Choice, ...] = tuple({"lengths": f"fixed:{n}"} for n in LENGTHS)
TREES: tuple[Choice, ...] = tuple({"lengths": f"tree:{n}"} for n in LENGTHS)
# SpecInfer's expansion, as far as plans have it: second-best guesses at each level, or none.
EXPANSIONS: tuple[Choice, ...] = ({"system": "paceline"}, {"system": "chains"})


def cosine_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of CoSine's: experts of domains, and a drafter trained on the mixture."""
    experts = tuple(name for name, one in world.drafters.items() if one.domain)
    mixture = tuple(name for name, one in world.drafters.items() if not one.domain)[:1]
    every: Choice = {"drafters_per_sequence": len(experts)}  # each has a node
    unions = tuple({"drafters": experts[:n]} for n in range(len(experts), 0, -1))
    no_fusion = plan("cosine without fusion", "cosine", experts, {**every, "fusion": "tree"})
    found = [
        off(),
        vanilla("vanilla", experts),
        vanilla("vanilla, mixture", mixture),
        Arm(plan("specinfer", "specinfer", experts, every), (TREES, unions, EXPANSIONS)),
        Arm(plan("specinfer, coupled", "specinfer", experts, every), (TREES,), is_coupled=True),
        pipeinfer("pipeinfer", experts),
        pipeinfer("pipeinfer, mixture", mixture),
        smurfs(experts, every, [{"overlap": "none"}, {"overlap": "always-halves"}]),
        Arm(plan("cosine", "cosine", experts, every)),
        Arm(plan("cosine, depth tuned", "cosine", experts, {**every, "routing": "all"}), (TREES,)),
        Arm(plan("cosine without sharing", "cosine", experts, {**every, "fusion": "tree"})),
        Arm(replace(no_fusion, without="fusion")),
        pace(experts, every),
    ]
    return [arm for arm in found if arm.drafters or arm.name == OFF]


def faser_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of FASER's: its parts one after the other, and chains."""
    drafters = tuple(world.drafters)
    splits = [round(own.value) for own in world.shared.splits] if world.shared else []
    ways: list[Choice] = [{"overlap": "always-halves", "partition": units} for units in splits]
    parts: dict[str, Choice] = {
        "faser, lengths": {"overlap": "none"},
        "faser, lengths and exit": {"overlap": "none", "pruning": "auto"},
        "faser, lengths and overlap": {"partition": "auto"},
        "faser": {"partition": "auto", "pruning": "auto"},
    }
    return [
        off(),
        vanilla("vanilla", drafters),
        Arm(plan("vanilla of 6", "vanilla", drafters, {"lengths": "fixed:6"}), system="chains"),
        Arm(plan("adaspec", "vanilla", drafters, WAYS["adaspec"].changes), system="adaspec"),
        smurfs(drafters, {}, [{"overlap": "none"}, *ways]),
        *(Arm(plan(name, "faser", drafters, own), system="chains") for name, own in parts.items()),
        pace(drafters, {"pruning": "auto"}),
    ]


ARMS: dict[str, Callable[[WorldSpec], list[Arm]]] = {"cosine": cosine_arms, "faser": faser_arms}


def off() -> Arm:
    return Arm(variant_of(OFF, {"plan": "off"}, (), speculates=False))


def vanilla(name: str, drafters: tuple[str, ...]) -> Arm:
    return Arm(plan(name, "vanilla", drafters[:1], {}), (CHAINS, alone(drafters)), "chains")


def pipeinfer(name: str, drafters: tuple[str, ...]) -> Arm:
    lengths: tuple[Choice, ...] = tuple({"length": n} for n in MICRO_RUNS)
    return Arm(variant_of(name, {}, drafters[:1]), (lengths, alone(drafters)), "pipeinfer")


def smurfs(drafters: tuple[str, ...], changes: Choice, ways: Iterable[Choice]) -> Arm:
    """Return Smurfs: all requests drafted for in turn, or one half of them beside the other."""
    return Arm(plan("smurfs", "specinfer", drafters, changes), (tuple(ways),), "smurfs")


def alone(drafters: tuple[str, ...]) -> tuple[Choice, ...]:
    return tuple({"drafters": (one,)} for one in drafters)


def pace(drafters: tuple[str, ...], changes: Choice) -> Arm:
    return Arm(variant_of("pace", {"plan": "pace", **changes, "model_free": False}, drafters))


def plan(name: str, base: str, drafters: tuple[str, ...], changes: Choice) -> Variant:
    """Return a paper's plan, which waits for the drafts of all drafters that it uses."""
    policy = {"draft_wait_s": PATIENCE_S, "draft_wait_factor": PATIENT}
    return variant_of(name, {"plan": base, **changes}, drafters, policy=policy)


def variant_of(name: str, changes: Choice, drafters: tuple[str, ...], **fields: Any) -> Variant:
    return Variant(name, {**COMMON, **changes}, drafters=drafters, model_free=(), is_steered=False, **fields)
