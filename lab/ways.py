"""Name the ways of drafting that experiments compare, as changes to the settings and to the drafters in use."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.stages.draft.phrases import Phrases
from app.stages.draft.registry import MODEL_FREE
from lab.adaspec import MOST

LENGTHS = (1, 2, 3, 4, 5, 6)  # of fixed chains
OFF, PACE = "off", "pace"
PAPERS = ("vanilla", "specinfer", "cosine", "faser")  # plans whose ways are the papers' if models draft
MODELS_ASKED = 0.9  # in this part of the rounds


@dataclass(frozen=True, slots=True)
class Variant:
    """A way of drafting. What it does not name is as the settings have it."""

    name: str
    changes: Mapping[str, object] = field(default_factory=dict)  # fields of Settings and their values
    drafters: tuple[str, ...] | None = None  # model drafters; None: all
    model_free: tuple[str, ...] | None = None  # names of model-free drafters; None: as its plan has it
    length: int | None = None  # draft tokens a round; None: by the plan's rule
    speculates: bool = True
    without: Literal["fusion"] | None = None  # an ablation that no setting names
    ends_as: Literal["adaspec"] | None = None  # the rule that ends a draft in its drafter; None: as the plan has it
    # In simulations only: whether beat steers, and fields of the policy that stay as they are.
    is_steered: bool = True
    policy: Mapping[str, object] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, object]:
        return {**self.changes, **({} if self.length is None else {"lengths": f"fixed:{self.length}"})}


def fixed(drafter: str, length: int, name: str | None = None) -> Variant:
    """Return chains of one drafter and one length: speculative decoding as first published (arXiv:2211.17192)."""
    return Variant(name or f"{drafter} x {length}", {"plan": "vanilla"}, drafters=(drafter,), length=length)


WAYS: Mapping[str, Variant] = {
    way.name: way
    for way in (
        Variant(OFF, {"plan": "off"}, speculates=False),
        Variant(PACE),
        Variant("pace, models alone", model_free=()),
        Variant("pace, tables alone", drafters=()),
        Variant("pace, lookup alone", drafters=(), model_free=("lookup",)),
        Variant("pace without suffix", model_free=tuple(name for name in MODEL_FREE if name != "suffix")),
        Variant("pace without phrases", model_free=tuple(name for name in MODEL_FREE if name != Phrases.name)),
        Variant("pace without routing", {"routing": "all"}),
        Variant("pace without fusion", without="fusion"),
        Variant("pace without overlap", {"overlap": "none"}),
        Variant("pace without beat", is_steered=False),
        Variant("vanilla", {"plan": "vanilla"}),
        Variant("specinfer", {"plan": "specinfer"}),
        Variant("cosine", {"plan": "cosine"}),
        Variant("cosine without sharing", {"plan": "cosine", "fusion": "tree"}),
        Variant("cosine without routing", {"plan": "cosine", "routing": "all"}),
        Variant("cosine without fusion", {"plan": "cosine", "fusion": "tree"}, without="fusion"),
        Variant("cosine without control", {"plan": "cosine", "lengths": "tree:4", "drafters_per_sequence": 2}),
        Variant("cosine of 6, all asked", {"plan": "cosine", "lengths": "tree:6", "routing": "all"}),
        Variant("cosine, batches in flight", {"plan": "cosine", "overlap": "always-halves"}),
        Variant("faser", {"plan": "faser"}),
        Variant("faser without overlap", {"plan": "faser", "overlap": "none"}),
        Variant("adaspec", {"plan": "vanilla", "lengths": f"fixed:{MOST}"}, ends_as="adaspec"),
    )
}
DEFAULT = (OFF, PACE, "pace, models alone", *PAPERS)
FORMS = "fixed:N; tree:N; chains (each drafter at each length); DRAFTER x N; pace with DRAFTER"


def chosen(names: Iterable[str], drafters: Iterable[str]) -> list[Variant]:
    """Return the ways of these names or of FORMS, plain decoding first. Raises ValueError for an unknown one."""
    drafters = tuple(drafters)
    found = {OFF: WAYS[OFF]}
    for name in names:
        found.update({way.name: way for way in _of(name, drafters)})
    return [*found.values()]


def _of(name: str, drafters: tuple[str, ...]) -> list[Variant]:
    if name in WAYS:
        return [WAYS[name]]
    kind, _, length = name.partition(":")
    if kind == "fixed" and length.isdigit():
        return [Variant(name, {"overlap": "none"}, length=int(length))]
    if kind == "tree" and length.isdigit():
        return [Variant(name, {"plan": "specinfer", "lengths": name})]
    alone = {f"pace with {drafter}": Variant(f"pace with {drafter}", drafters=(drafter,)) for drafter in drafters}
    chains = {way.name: way for way in (fixed(drafter, length) for drafter in drafters for length in LENGTHS)}
    if name == "chains":
        return [*chains.values()]
    if name in alone | chains:
        return [(alone | chains)[name]]
    raise ValueError(f"no way {name!r}: there are {'; '.join(WAYS)}; {FORMS} (drafters: {', '.join(drafters)})")


def titled(name: str, model_rounds: float) -> str:
    """Return a way's name for a table, marked where it is named after a paper's plan and models hardly drafted.

    `model_rounds`: the part of the rounds after a request's first token for which a model drafted.
    """
    is_papers = name.replace(",", " ").split()[0] in PAPERS
    return f"{name} (models in {model_rounds:.0%} of rounds)" if is_papers and model_rounds < MODELS_ASKED else name
