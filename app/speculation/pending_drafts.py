"""Keep the drafts under way: how long they are waited for, how far nodes have read, and what the answers teach."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import NamedTuple

from app.clock import Clock
from app.messages import DraftReport, TreeMessage
from app.policy import Policy
from app.speculation.draft_costs import FEW_UNREAD, DraftCosts, is_sound
from app.speculation.draft_modes import DraftModes
from app.speculation.routing import Route
from app.state import Sequence

ERRORS = 64  # last batches whose waits are compared with what was expected
MIN_WAIT_S = 0.03  # the shortest wait for drafts, within the policy, and the first before it is known what they take
FIRST_WAITS = 4  # of which each is twice as long as the one before
MOST_JOBS = 4  # of a request that are remembered

Asked = tuple[Sequence, int, Route]  # with the tokens to draft, and by whom


@dataclass(slots=True, eq=False)
class AskedBatch:
    at_s: float  # monotonic
    sequences: int
    depth: int  # tokens of the deepest draft
    drafters: int  # models, of the sequence with most
    wait_s: float  # drafts that come later cost no more
    expected_s: float
    is_model_free: bool
    split: int  # of the machine, when it was sent
    has_unread: bool  # its nodes must read before they guess
    is_first: bool  # they guess ahead, but could not do so yet
    is_judged: bool = False  # an answer was compared with what was expected
    launched_s: float = inf  # after `at_s`, when the next step began, during which no answer is found


class PendingDraft(NamedTuple):
    batch: AskedBatch
    base: int  # tokens of the sequence
    homes: Mapping[str, str]  # mailboxes of the model drafters, by name
    is_reading: bool  # it only lets its nodes read


class SeenText(NamedTuple):
    """What a node had read of a sequence at its last answer."""

    base: int  # tokens of the sequence then
    tokens: int


NOTHING_SEEN = SeenText(0, 0)


class ReceivedBatch(NamedTuple):
    answers: int
    came_s: float
    waited_s: float


class PendingDrafts:
    """The unanswered jobs of a verifier's sequences, and the tokens that each node has read."""

    def __init__(self, modes: DraftModes, clock: Clock) -> None:
        self.usual_depth = 0  # of the drafts that were asked for last; 0 where none were
        self._modes = modes
        self._clock = clock
        self._is_model_free = False  # were those drafts asked of no model?
        self._jobs: dict[str, list[PendingDraft]] = {}  # by request, the latest last
        self._seen: dict[str, dict[str, SeenText]] = {}  # by request and mailbox
        self._awaited: list[AskedBatch] = []  # since the last step began
        self._errors = deque[float](maxlen=ERRORS)
        self._first_waits = 0

    @property
    def error(self) -> float | None:
        """Return the median of |wait - expected wait| / wait over the last drafts with models, or None."""
        return median(self._errors) if self._errors else None

    @property
    def models(self) -> DraftCosts:
        return self._modes.with_models.costs

    def usual_s(self, sequences: int) -> float:
        """Return the usual seconds of drafts as last asked for, for so many sequences."""
        costs = self._modes.model_free.costs if self._is_model_free else self.models
        return costs.wait_s(sequences, self.usual_depth)

    def unread(self, sequence: Sequence, home: str) -> int:
        """Return how many tokens the drafters there have not read; a few count as none."""
        unread = len(sequence.tokens) - self._seen_there(sequence, home).tokens
        return unread if unread > FEW_UNREAD else 0

    def is_reading(self, request_id: str, home: str) -> bool:
        """Tell whether the node was sent the request's text to read, and is expected to answer."""
        now_s = self._clock.monotonic()
        jobs = (job for job in self._jobs.get(request_id, ()) if job.is_reading and home in job.homes.values())
        return any(now_s < job.batch.at_s + job.batch.wait_s for job in jobs)

    def unready(self, asked: Listed[Asked], worth_s: float, here: str) -> dict[str, set[str]]:
        """Return, by request, the nodes that must read its text first, for longer than is worth the wait.

        Texts are read in the order of the sequences, as many as there is time for; `here` they are in any case.
        """
        found: dict[str, set[str]] = {}
        spare_s = worth_s - self.models.seconds(len(asked), max((depth for _, depth, _ in asked), default=0))
        left_s: dict[str, float] = {}
        for sequence, _, route in asked:
            for home in {*route.homes.values()} - {here}:
                read_s, left = self.models.read_s(self.unread(sequence, home)), left_s.get(home, spare_s)
                if read_s > max(0.0, left):
                    found.setdefault(sequence.record.id, set()).add(home)
                else:
                    left_s[home] = left - read_s
        return found

    def wait(
        self, asked: Listed[Asked], policy: Policy, worth_s: float, *, is_model_free: bool, is_first: bool = False
    ) -> float:
        """Let the sequences wait for their trees as long as drafts usually take, within `worth_s` and the policy.

        `is_first`: nodes that guess ahead could not do so for any of them. Returns until when, by the wall clock.
        """
        if not asked:
            return 0.0
        costs = self._modes.model_free.costs if is_model_free else self.models.of(_drafters(asked))
        self.usual_depth, self._is_model_free = max(depth for _, depth, _ in asked), is_model_free
        unread = self.most_unread(asked)
        read_s = self.models.read_s(unread)
        usual_s = costs.wait_s(len(asked), self.usual_depth) + read_s
        expected_s = costs.seconds(len(asked), self.usual_depth) + read_s
        if not costs.is_known:
            usual_s = max(usual_s, self._first_wait_s())
            is_first = is_first and self._first_waits < FIRST_WAITS
        wait_s = min(policy.draft_wait_s, max(MIN_WAIT_S, policy.draft_wait_factor * usual_s), usual_s + worth_s)
        self._expect(asked, wait_s, expected_s, is_model_free=is_model_free, has_unread=unread > 0, is_first=is_first)
        now_s = self._clock.time()
        for sequence, depth, _ in asked:
            sequence.asked, sequence.expected_s, sequence.due_s = depth, now_s + expected_s, now_s + wait_s
        return now_s + wait_s

    def let_read(self, readings: Listed[Asked], policy: Policy) -> float:
        """Expect answers that no sequence waits for; return until when they are expected, by the wall clock."""
        if readings:
            self._expect(readings, policy.draft_wait_s, 0.0, is_reading=True)
        return self._clock.time() + policy.draft_wait_s

    def take(self, message: TreeMessage) -> PendingDraft | None:
        """Remove and return the job that a tree answers."""
        jobs = self._jobs.get(message.request_id, [])
        for job in reversed(jobs):
            # A node that only reads answers for itself.
            is_reader = bool(message.reports) and message.reports.keys() <= job.homes.keys()
            if job.base == message.base and (is_reader or not job.is_reading):
                jobs.remove(job)
                return job
        return None

    def record_launch(self) -> None:
        now_s = self._clock.monotonic()
        for batch in self._awaited:
            batch.launched_s = now_s - batch.at_s
        self._awaited.clear()

    def learn(self, answers: Iterable[tuple[TreeMessage, PendingDraft]]) -> list[ReceivedBatch]:
        """Learn from trees that came at once; return how long each batch took."""
        by_batch: dict[AskedBatch, list[DraftReport]] = {}
        counts = Counter[AskedBatch]()
        for message, job in answers:
            self._record_seen(message, job)
            by_batch.setdefault(job.batch, []).extend(message.reports.values())
            counts[job.batch] += not job.is_reading
        return [self._learn(batch, own, counts[batch]) for batch, own in by_batch.items()]

    def remove(self, request_id: str) -> None:
        self._jobs.pop(request_id, None)
        self._seen.pop(request_id, None)

    def _first_wait_s(self) -> float:
        if self._first_waits >= FIRST_WAITS:
            return 0.0
        self._first_waits += 1
        return MIN_WAIT_S * 2 ** (self._first_waits - 1)

    def _seen_there(self, sequence: Sequence, home: str) -> SeenText:
        return self._seen.get(sequence.record.id, {}).get(home, NOTHING_SEEN)

    def most_unread(self, asked: Listed[Asked]) -> int:
        """Return the most tokens that a node reads before it drafts for these sequences."""
        unread = Counter[str]()
        for sequence, _, route in asked:
            for home in set(route.homes.values()):
                unread[home] += self.unread(sequence, home)
        return max(unread.values(), default=0)

    def _expect(
        self,
        asked: Listed[Asked],
        wait_s: float,
        expected_s: float,
        *,
        is_model_free: bool = False,
        has_unread: bool = False,
        is_first: bool = False,
        is_reading: bool = False,
    ) -> None:
        now_s = self._clock.monotonic()
        deepest = max(depth for _, depth, _ in asked)
        batch = AskedBatch(
            now_s,
            len(asked),
            deepest,
            _drafters(asked),
            wait_s,
            expected_s,
            is_model_free,
            self.models.split,
            has_unread,
            is_first,
        )
        self._awaited.append(batch)
        for sequence, _, route in asked:
            request_id, length = sequence.record.id, len(sequence.tokens)
            jobs = self._jobs.setdefault(request_id, [])
            jobs.append(PendingDraft(batch, length, route.homes, is_reading))
            del jobs[:-MOST_JOBS]

    def _record_seen(self, message: TreeMessage, job: PendingDraft) -> None:
        found: dict[str, int] = {}
        for name, report in message.reports.items():
            if (home := job.homes.get(name)) is not None and report.seen >= 0:
                # What a node leaves unread when it drafts, it reads in spare time.
                found[home] = min(report.seen if job.is_reading else job.base, found.get(home, job.base))
        seen = self._seen.setdefault(message.request_id, {})
        for home, tokens in found.items():
            if job.base >= seen.get(home, NOTHING_SEEN).base:
                seen[home] = SeenText(job.base, tokens)

    def _learn(self, batch: AskedBatch, reports: Iterable[DraftReport], drafts: int) -> ReceivedBatch:
        came_s = self._clock.monotonic() - batch.at_s
        sound = [report for report in reports if is_sound(report, came_s)]
        if batch.is_model_free:
            self._modes.model_free.costs.update(batch.sequences, came_s)
        elif batch.split != self.models.split:
            pass  # what one split takes says nothing of another
        elif drafts:
            if not batch.is_judged and came_s <= batch.launched_s and came_s > 0.0 and self.models.is_known:
                batch.is_judged = True
                self._errors.append(abs(came_s - batch.expected_s) / came_s)
            # Nodes that read first take longer for all else, too.
            if batch.has_unread and self.models.is_known:
                self._learn_reading(sound)
            else:
                of = batch.sequences, batch.depth, came_s, sound, batch.launched_s, batch.drafters
                self.models.update(*of, is_first=batch.is_first)
        else:
            self._learn_reading(sound)
        return ReceivedBatch(drafts, came_s, min(came_s, batch.wait_s))

    def _learn_reading(self, reports: Listed[DraftReport]) -> None:
        if reports:
            self.models.update_reading(max(reports, key=lambda report: report.read_s))


def _drafters(asked: Listed[Asked]) -> int:
    return max(len(route.homes) for _, _, route in asked)
