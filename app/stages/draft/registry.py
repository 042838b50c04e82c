"""The drafters that need no model, by name. Adding one: its file, and its line here."""

from collections.abc import Callable, Iterable

from app.stages.draft.lookup import Lookup
from app.stages.draft.phrases import Phrases
from app.stages.draft.protocol import Drafter
from app.stages.draft.suffix import Suffix

MODEL_FREE: dict[str, Callable[[], Drafter]] = {
    "lookup": Lookup,
    "suffix": Suffix,
}
TABLES = frozenset({*MODEL_FREE, Phrases.name})  # never answer by mail: where one is missing, nobody waits for it


def build(names: Iterable[str] = tuple(MODEL_FREE)) -> list[Drafter]:
    """One fresh drafter for each name. Raises KeyError for a name that is not resident."""
    return [MODEL_FREE[name]() for name in names]
