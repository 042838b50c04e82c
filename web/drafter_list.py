"""List the deployment's drafters in one order: a drafter's place gives its colour on the pages (static/drafters.js)."""

from app.config import Settings
from app.engine.weights.resolve import drafter_name
from app.stages.draft.registry import MODEL_FREE


def drafter_list(settings: Settings) -> list[str]:
    return [*MODEL_FREE, *sorted(map(drafter_name, settings.drafters))]
