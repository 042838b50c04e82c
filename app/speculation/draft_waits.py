"""Let sequences wait for the drafts that they asked for: until when, and what must be read before.

Jobs of a batch go in, due times come out, and what their answers are to teach is noted. Sends nothing, and looks into
no tree.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from math import inf
from types import MappingProxyType

from app.clock import Clock
from app.policy import Policy
from app.speculation.draft_costs import FEW_UNREAD
from app.speculation.draft_modes import DraftModes
from app.speculation.pending_drafts import AskedBatch, PendingDraft, PendingDrafts
from app.speculation.read_tokens import ReadTokens
from app.speculation.routing import Route
from app.state import Sequence

ROUND_TOKENS = 9  # that a round brings at most, nearly always
MIN_WAIT_S = 0.03  # the shortest wait for a tree, within the policy
FIRST_WAITS = 4  # of which each is twice as long as the one before, while nothing is known of what drafts take

Asked = tuple[Sequence, int, Route]  # with the tokens to draft, and by whom
Unread = dict[str, dict[str, int]]  # tokens by node and request


class DraftWaits:
    """The waits of a verifier's sequences for their trees."""

    def __init__(self, modes: DraftModes, pending: PendingDrafts, read: ReadTokens, clock: Clock) -> None:
        """Wait for as long as `modes` expect; note what is asked in `pending`, and what is sent in `read`."""
        self.deciding_s = 0.0  # what finding the present depths took
        self.split = 0  # of the machine, in use
        self.usual_depth = 0  # of the drafts that were asked for last; 0 where none were
        self._modes = modes
        self._pending = pending
        self._read = read
        self._clock = clock
        self._first_waits = 0  # so far
        self._usual_costs = modes.with_models.costs  # of their mode

    def is_awaited(self, one: Asked, now_s: float) -> bool:
        """Tell whether a node that is to draft still works at an earlier job of the sequence."""
        sequence, _, route = one
        return any(self._read.is_awaited(sequence.record.id, home, now_s) for home in route.homes.values())

    def slow_homes(self, asked: Listed[Asked], unread: Unread, worth_s: float, now_s: float) -> set[str]:
        """Choose the nodes whose drafters must read so much first that their drafts come when worth nothing."""
        reading = {home: self._read.reading(home, now_s) for home in unread}
        if not any(unread.values()) and not any(reading.values()):
            return set()
        costs = self._modes.with_models.costs
        draft_s = costs.seconds(len(asked), max(depth for _, depth, _ in asked))
        reads_s = {home: costs.read_s(_total(own, reading[home])) for home, own in unread.items()}
        return {home for home, read_s in reads_s.items() if read_s > 0.0 and read_s + draft_s > worth_s}

    def unread_by_home(self, asked: Listed[Asked], now_s: float) -> Unread:
        """Return, for each node asked and by request, the tokens that its drafters must read; a few do not count."""
        found: Unread = {}
        for sequence, _, route in asked:
            if not route.homes:
                continue
            record_id, length = sequence.record.id, len(sequence.tokens)
            for home in route.homes.values():
                own = found.setdefault(home, {})
                unread = self._read.unread(record_id, length, home, now_s)
                if unread > FEW_UNREAD:
                    own[record_id] = unread
        return found

    def usual_s(self, sequences: int) -> float:
        """Return what drafts like those that were asked for last usually take for so many sequences."""
        return self._usual_costs.seconds(sequences, self.usual_depth) if self.usual_depth else 0.0

    def wait(
        self, asked: Listed[Asked], unread: Unread, policy: Policy, worth_s: float, now_s: float, *, is_model_free: bool
    ) -> float:
        """Let the sequences wait for their trees; return until when, by the wall clock."""
        if not asked:
            return 0.0
        modes = self._modes
        costs = (modes.model_free if is_model_free else modes.with_models).costs
        deepest = max(depth for _, depth, _ in asked)
        self.usual_depth, self._usual_costs = deepest, costs
        usual_s = self.usual_s(len(asked)) + costs.read_s(max(map(_total, unread.values()), default=0))
        if not costs.is_known and self._first_waits < FIRST_WAITS:  # drafts that are late teach nothing
            usual_s = max(usual_s, MIN_WAIT_S * 2**self._first_waits)
            self._first_waits += 1
        wait_s = min(policy.draft_wait_s, max(MIN_WAIT_S, policy.draft_wait_factor * usual_s), usual_s + worth_s)
        batch = AskedBatch(
            now_s,
            len(asked),
            deepest,
            wait_s,
            is_model_free,
            catches_up=bool(unread) and self._catches_up(asked, now_s),
            deciding_s=self.deciding_s,
            split=self.split,
        )
        self._expect(asked, batch, unread, policy)
        due_s = self._clock.time() + wait_s
        for sequence, _, _ in asked:
            sequence.due_s = due_s
        return due_s

    def _catches_up(self, asked: Listed[Asked], now_s: float) -> bool:
        """Tell whether the drafters of some node read more first than a round brings."""
        unread: Counter[str] = Counter()
        for sequence, _, route in asked:
            for home in set(route.homes.values()):
                unread[home] += self._read.unread(sequence.record.id, len(sequence.tokens), home, now_s)
        return max(unread.values(), default=0) > ROUND_TOKENS * len(asked)

    def probe(
        self,
        probed: Listed[Asked],
        policy: Policy,
        now_s: float,
        *,
        is_model_free: bool = False,
        is_reading: bool = False,
    ) -> float:
        """Expect answers that no sequence waits for; return until when drafters may work at them, by the wall clock."""
        if not probed:
            return 0.0
        batch = AskedBatch(now_s, len(probed), 1, inf, is_model_free, is_probe=True, split=self.split)
        answer_s = self._expect(probed, batch, self.unread_by_home(probed, now_s), policy, is_reading=is_reading)
        return self._clock.time() + answer_s

    def _expect(
        self, asked: Listed[Asked], batch: AskedBatch, unread: Unread, policy: Policy, *, is_reading: bool = False
    ) -> float:
        """Record the jobs of a batch; return the seconds within which drafters answer, if ever."""
        expect = self._pending.expect_readings if is_reading else self._pending.expect
        if not unread:  # no model is among the drafters
            expect([(sequence.record.id, len(sequence.kv.tokens)) for sequence, _, _ in asked], PendingDraft(batch))
            return policy.draft_wait_s
        now_s, few = batch.at_s, FEW_UNREAD * len(asked)
        reading = {home: self._read.reading(home, now_s) for home in unread}
        own = {home: tokens for home in unread if (tokens := _total(unread[home])) > few}
        most = max((_total(unread[home], reading[home]) for home in unread), default=0)
        answer_s = policy.draft_wait_s + 2.0 * self._modes.with_models.costs.read_s(most)
        alike: dict[tuple[int, bool, frozenset[str]], PendingDraft] = {}
        for sequence, _, route in asked:
            record_id, length, homes = sequence.record.id, len(sequence.tokens), route.homes
            to_read, readers = 0, frozenset[str]()
            if own and homes:
                slowest = max(homes.values(), key=lambda home: own.get(home, 0))
                to_read = own.get(slowest, 0)
                readers = frozenset(name for name, home in homes.items() if home == slowest)
            is_held_up = any(reading[home] for home in homes.values())
            pending = alike.setdefault(
                (to_read, is_held_up, readers), PendingDraft(batch, to_read, is_held_up, readers)
            )
            expect([(record_id, length)], pending)
            if homes:
                fuser = "" if is_reading else route.fuser  # that answers for its readers alone
                self._read.record_sent(record_id, length, homes, fuser, now_s, now_s + answer_s)
        return answer_s


def _total(unread: Mapping[str, int], reading: Mapping[str, int] = MappingProxyType({})) -> int:
    """Count the tokens of all requests: those to be read, and those that are read already."""
    return sum({**reading, **unread}.values())
