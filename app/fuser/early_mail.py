"""Keep mail that overtook its job, until the job arrives."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from app.messages import Draft, DraftJob, TokenGuess

MAX_EARLY = 512  # rounds of which mail is kept; the oldest are dropped
MAX_EARLY_EACH = 32  # items of one round
Item = TypeVar("Item", Draft, TokenGuess)


class EarlyMail(Generic[Item]):
    def __init__(self) -> None:
        self._rounds: OrderedDict[tuple[str, int], dict[Hashable, Item]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def keep(self, key: Hashable, item: Item) -> None:
        """Keep the first item of each key."""
        kept = self._rounds.setdefault((item.request_id, item.base), {})
        if len(kept) < MAX_EARLY_EACH:
            kept.setdefault(key, item)
        while len(self._rounds) > MAX_EARLY:
            self._rounds.popitem(last=False)

    def take(self, job: DraftJob) -> list[Item]:
        return list(self._rounds.pop((job.request_id, job.base), {}).values())
