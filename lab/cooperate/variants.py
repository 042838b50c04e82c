"""Define the arms of `lab cooperate`: ways of drafting, as changes to the settings and the
drafter pool.

Holds data only; loads no model and runs nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.config import Settings
from app.stages.draft.phrases import Phrases
from app.stages.draft.registry import MODEL_FREE

LENGTHS = (1, 2, 3, 4, 5, 6)  # fixed draft lengths tried in the pilot
OVERLAPS = ("auto", "none", "halves", "always-halves")
RULES = ("faser",)  # app/speculation/baselines.py
FULL, OFF, SINGLE = "full", "off", "best single"
PAPERS = ("vanilla", "specinfer", "cosine", "faser")  # plans whose arms are the papers' if models are asked:
MODELS_ASKED = 0.9  # in this part of the rounds


@dataclass(frozen=True, slots=True)
class Variant:
    """An arm. A field that it does not name is as the settings have it, as in the full system."""

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)  # fields of Settings and their values
    drafters: tuple[str, ...] | None = None  # model drafters; None: all
    model_free: tuple[str, ...] | None = None  # names of model-free drafters; None: as its plan has it
    length: int | None = None  # draft tokens every round; None: as many as pay
    speculates: bool = True
    without: Literal["fusion"] | None = None  # an ablation that no setting names
    # Simulated deployments only: whether beat steers, or the first policy holds; fields of the policy that stay so in
    # either case; and the most nodes of a tree.
    is_steered: bool = True
    policy: Mapping[str, object] = field(default_factory=dict)
    nodes: int | None = None
    chunk: int | None = None  # simulated: drafters always run ahead, and so many tokens of each draft are waited for

    @property
    def settings(self) -> dict[str, object]:
        """Return the changed settings by name, the fixed length among them."""
        return {**self.changes, **({} if self.length is None else {"lengths": f"fixed:{self.length}"})}

    def missing(self) -> list[str]:
        """List the settings that this version of Paceline does not have, or not with this value."""
        return [name for name, value in self.settings.items() if not _takes(name, value)]


def fixed(drafter: str, length: int, name: str | None = None) -> Variant:
    """Return the arm of one model drafter with chains of one length: speculation as first
    published."""
    return Variant(name or f"{drafter} x {length}", {"plan": "vanilla"}, drafters=(drafter,), length=length)


def pilot(drafters: Iterable[str]) -> list[Variant]:
    """Return an arm for every drafter at every length."""
    return [fixed(drafter, length) for drafter in drafters for length in LENGTHS]


def variants(best: Variant | None, generalist: str | None) -> list[Variant]:
    """Return all arms but the peers'; `best` is the pilot's winner, `generalist` the drafter
    trained on the mixture."""
    single = [] if best is None or best.drafters is None else [fixed(best.drafters[0], best.length or 1, SINGLE)]
    alone = (generalist,) if generalist else ()
    generalists = [Variant("generalist", drafters=alone, model_free=()), Variant("generalist + tables", drafters=alone)]
    return [
        Variant(OFF, speculates=False),
        *single,
        *(generalists if generalist else []),
        *(Variant(plan, {"plan": plan}) for plan in ("vanilla", "specinfer", "cosine", "faser")),
        Variant("cosine without sharing", {"plan": "cosine", "fusion": "tree"}),
        Variant("cosine without routing", {"plan": "cosine", "routing": "all"}),
        Variant("cosine without fusion", {"plan": "cosine", "fusion": "tree"}, without="fusion"),
        Variant("cosine without control", {"plan": "cosine", "lengths": "tree:4", "drafters_per_sequence": 2}),
        Variant("cosine, batches in flight", {"plan": "cosine", "overlap": "always-halves"}),
        Variant("faser without overlap", {"plan": "faser", "overlap": "none"}),
        Variant("pace without tables", {"model_free": False}, model_free=()),
        Variant(FULL),
        Variant("without routing", {"routing": "all"}),
        Variant("without fusion", without="fusion"),
        Variant("without run-ahead", {"overlap": "none"}),
        Variant("without suffix", model_free=tuple(name for name in MODEL_FREE if name != "suffix")),
        Variant("without phrases", model_free=tuple(name for name in MODEL_FREE if name != Phrases.name)),
        Variant("tables only", drafters=()),
        Variant("lookup only", drafters=(), model_free=("lookup",)),
    ]


def by_length(lengths: Iterable[int], model_free: tuple[str, ...] | None = None) -> list[Variant]:
    """Return arms without speculation, with the same drafters at each fixed length, and with the
    adaptive length."""
    chains = [Variant(f"fixed {n}", {"overlap": "none"}, model_free=model_free, length=n) for n in lengths]
    return [Variant(OFF, model_free=model_free, speculates=False), *chains, Variant(FULL, model_free=model_free)]


def rules(model_free: tuple[str, ...] | None = None) -> list[Variant]:
    """Return an arm for each rule for the length beside the default one."""
    return [Variant(name, {"overlap": "none", "lengths": name}, model_free=model_free) for name in RULES]


def overlaps() -> list[Variant]:
    """Return arms for each way to overlap drafting and verifying, with all drafters and with model
    drafters alone."""
    whole = [Variant(way, {"overlap": way}) for way in OVERLAPS]
    alone = [Variant(f"{way}, models alone", {"overlap": way}, model_free=()) for way in OVERLAPS]
    return [Variant(OFF, speculates=False), *whole, *alone]


def crowds() -> list[Variant]:
    """Return arms for one, two and four drafters that share each token, by the nodes of a tree; no rule decides.

    Trees of so many nodes are cut from drafts of several depths, the most promising nodes first.
    """
    rules = {"plan": "cosine", "batching": "pace", "overlap": "none"}
    return [
        Variant(OFF, speculates=False),
        *(
            Variant(
                f"{count} drafters, {nodes} nodes, {depth} deep",
                {**rules, "drafters_per_sequence": count, "lengths": f"tree:{depth}"},
                nodes=nodes,
            )
            for count in (1, 2, 4)
            for nodes, depths in ((1, (1,)), (2, (1, 2)), (4, (2, 4)), (8, (4, 8)), (16, (4, 8)))
            for depth in depths
        ),
    ]


def titled(name: str, model_rounds: float) -> str:
    """Return an arm's name for a table, marked where it is named after a paper's plan and hardly asked models.

    `model_rounds`: the part of the rounds after a request's first token for which a model drafter was asked.
    """
    is_papers = name.replace(",", " ").split()[0] in PAPERS
    return f"{name} (models in {model_rounds:.0%} of rounds)" if is_papers and model_rounds < MODELS_ASKED else name


def asked_cells(name: str, model_rounds: float | None) -> tuple[str, str]:
    """Return an arm's name (`titled`) and that part as a table has them; None: it was not counted."""
    return (name, "") if model_rounds is None else (titled(name, model_rounds), f"{model_rounds:.0%}")


def _takes(name: str, value: object) -> bool:
    try:
        Settings().changed(**{name: value})
    except ValueError:
        return False
    return True
