"""Name the model-free drafters. A new one that needs no file: its module, and its line here."""

from collections.abc import Callable, Iterable

from app.stages.draft.protocol import Drafter
from app.stages.draft.suffix import Suffix


def _lookup() -> Drafter:
    from app.stages.draft.lookup import Lookup  # numba: web and control name drafters, and run none

    return Lookup()


BUILT_IN: dict[str, Callable[[], Drafter]] = {  # those that need no file
    "lookup": _lookup,
    "suffix": Suffix,
}
PHRASES = "phrases"  # loaded where it drafts alone, since it brings a compiler
LEARNING = frozenset({"suffix"})  # these learn from the texts of their own process
MODEL_FREE = (*BUILT_IN, PHRASES)  # run where drafts are fused and never answer by mail, so no round waits for one


def build(names: Iterable[str] = tuple(BUILT_IN)) -> list[Drafter]:
    """Raises KeyError for a name that is not built in."""
    return [BUILT_IN[name]() for name in names]
