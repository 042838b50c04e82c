"""Name the arms of the testbeds: the plans that run live, their ablations, and the papers' baselines.

Data only. No arm uses n-gram tables, since made texts repeat nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Literal

from lab.testbeds.worlds import WorldSpec
from lab.ways import OFF, Variant

COMMON = {"max_sequences": 512, "pruning": "off"}
PATIENCE_S = 10.0  # that a paper's plan waits for drafts at most
LENGTHS = (1, 2, 3, 4, 5, 6, 8)  # of chains and trees
ADASPEC_MOST = 8  # tokens that AdaSpec drafts at most
MICRO_RUNS = (1, 2, 3, 4)  # tokens of a micro-run of PipeInfer's
NOTHING: Mapping[str, object] = MappingProxyType({})
System = Literal["paceline", "adaspec", "smurfs", "pipeinfer"]  # what runs an arm (`lab.testbeds.play`)


@dataclass(frozen=True, slots=True)
class Arm:
    """Variants of one name; the fastest on other data is the one that is measured."""

    variants: tuple[Variant, ...]
    system: System = "paceline"
    chosen: str = ""  # settings of the variant that was fastest; empty: there is one variant

    @property
    def variant(self) -> Variant:
        """Return the first variant."""
        return self.variants[0]

    @property
    def name(self) -> str:
        """Return the name of all variants."""
        return self.variant.name

    @property
    def drafters(self) -> tuple[str, ...]:
        """Return the model drafters of the first variant."""
        return self.variant.drafters or ()

    def only(self, variant: Variant) -> "Arm":
        """Return the arm with this one of its variants alone; `chosen`: where the variants differ."""
        shared = set.intersection(*(set(_words(one)) for one in self.variants))
        own = (word for word in _words(variant) if word not in shared)
        return replace(self, variants=(variant,), chosen=", ".join(own))


def cosine_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of CoSine's: experts of domains, and a drafter trained on the mixture."""
    experts = tuple(name for name, one in world.drafters.items() if one.domain)
    mixture = tuple(name for name, one in world.drafters.items() if not one.domain)[:1]
    every: dict[str, object] = {"drafters_per_sequence": len(experts)}  # each has a node
    no_fusion = _plan("cosine without fusion", "cosine", experts, {**every, "fusion": "tree"})
    return [
        off(),
        vanilla("vanilla", experts),
        vanilla("vanilla, mixture", mixture),
        Arm(tuple(_plan("specinfer", "specinfer", experts, {**every, "lengths": f"tree:{n}"}) for n in LENGTHS)),
        pipeinfer("pipeinfer", experts),
        pipeinfer("pipeinfer, mixture", mixture),
        smurfs(experts, every, [{"overlap": "none"}, {"overlap": "always-halves"}]),
        _one("cosine", "cosine", experts, every),
        _one("cosine without sharing", "cosine", experts, {**every, "fusion": "tree"}),
        _one("cosine without routing", "cosine", experts, {**every, "routing": "all"}),
        _one("cosine without control", "cosine", experts, {"lengths": "tree:4", "drafters_per_sequence": 2}),
        Arm((replace(no_fusion, without="fusion"),)),
        *(_one(f"cosine of {n}", "cosine", experts[:n], {"drafters_per_sequence": n}) for n in range(1, len(experts))),
        _pace("pace", experts, every),
        _pace("pace, mixture", mixture),
    ]


def faser_arms(world: WorldSpec) -> list[Arm]:
    """Return the arms in a world of FASER's: its parts one after the other, and chains."""
    drafters = tuple(world.drafters)
    splits = [round(own.value) for own in world.shared.splits] if world.shared else []
    ways: list[dict[str, object]] = [{"overlap": "always-halves", "partition": units} for units in splits]
    parts: dict[str, dict[str, object]] = {
        "faser, lengths": {"overlap": "none"},
        "faser, lengths and exit": {"overlap": "none", "pruning": "auto"},
        "faser, lengths and overlap": {"partition": "auto"},
        "faser": {"partition": "auto", "pruning": "auto"},
    }
    adaspec = _plan("adaspec", "vanilla", drafters, {"lengths": f"fixed:{ADASPEC_MOST}"})
    return [
        off(),
        vanilla("vanilla", drafters),
        _one("vanilla of 6", "vanilla", drafters, {"lengths": "fixed:6"}),
        Arm((adaspec,), "adaspec"),
        smurfs(drafters, {}, [{"overlap": "none"}, *ways]),
        *(  # FASER's controller is its own, so that beat does not steer it
            Arm((replace(_plan(name, "faser", drafters, own), is_steered=False),)) for name, own in parts.items()
        ),
        _pace("pace", drafters, {"pruning": "auto"}),
    ]


ARMS: dict[str, Callable[[WorldSpec], list[Arm]]] = {"cosine": cosine_arms, "faser": faser_arms}


def off() -> Arm:
    """Return plain decoding."""
    return Arm((Variant(OFF, {**COMMON, "plan": "off"}, drafters=(), model_free=(), speculates=False),))


def vanilla(name: str, drafters: tuple[str, ...]) -> Arm:
    """Return chains of one length of one drafter."""
    own = product(drafters, LENGTHS)
    return Arm(tuple(_plan(name, "vanilla", (drafter,), {"lengths": f"fixed:{n}"}) for drafter, n in own))


def pipeinfer(name: str, drafters: tuple[str, ...]) -> Arm:
    """Return PipeInfer with one drafter and micro-runs of one length."""
    own = product(drafters, MICRO_RUNS)
    return Arm(tuple(Variant(name, drafters=(one,), model_free=(), length=n) for one, n in own), "pipeinfer")


def smurfs(drafters: tuple[str, ...], changes: Mapping[str, object], ways: Iterable[Mapping[str, object]]) -> Arm:
    """Return Smurfs: all requests drafted for in turn, or one half of them beside the other."""
    return Arm(tuple(_plan("smurfs", "specinfer", drafters, {**changes, **way}) for way in ways), "smurfs")


def _words(variant: Variant) -> list[str]:
    """Return a variant's settings and drafters."""
    return [*(f"{name} {value}" for name, value in variant.settings.items()), *(variant.drafters or ())]


def _pace(name: str, drafters: tuple[str, ...], changes: Mapping[str, object] = NOTHING) -> Arm:
    settings = {**COMMON, "plan": "pace", **changes, "model_free": False}
    return Arm((Variant(name, settings, drafters=drafters, model_free=()),))


def _one(name: str, plan: str, drafters: tuple[str, ...], changes: Mapping[str, object]) -> Arm:
    return Arm((_plan(name, plan, drafters, changes),))


def _plan(name: str, plan: str, drafters: tuple[str, ...], changes: Mapping[str, object]) -> Variant:
    """Return a paper's plan, which waits for the drafts of all drafters that it uses."""
    settings = {**COMMON, "plan": plan, **changes}
    return Variant(name, settings, drafters=drafters, model_free=(), policy={"draft_wait_s": PATIENCE_S})
