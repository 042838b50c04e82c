"""Keep the drafts under way, and learn from each answer how long drafts take.

Jobs that were sent and trees that come go in; costs for the next decisions come out. Looks into no
tree, and decides nothing.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.clock import Clock
from app.mean_error import MeanError
from app.messages import TreeMessage
from app.speculation.draft_costs import DEFAULT_HOP_S, DraftCosts
from app.speculation.draft_modes import DraftModes
from app.speculation.host_costs import HostCosts
from app.verifier.stats import VerifierStats

HOPS = 16  # last answers by which the way to the drafters and back is known
STEPS = 16  # last steps of the verifier, beside which drafts may have been made


@dataclass(slots=True)
class AskedBatch:
    """Hold what the jobs share that were sent at once."""

    at_s: float  # monotonic
    sequences: int
    depth: int  # tokens of the deepest draft
    patience_s: float  # longest wait for it: drafts that come later cost no more
    is_model_free: bool = False
    deciding_s: float = 0.0  # what finding the depth took: a part of what drafts cost
    is_probe: bool = False  # its sequences go on without it
    catches_up: bool = False  # drafters read more first than a round brings: it shows what drafts take at most
    split: int = 0  # of the machine, when it was sent
    is_judged: bool = False  # an answer was compared with what was expected
    is_read: bool = False  # an answer taught what reading takes


@dataclass(frozen=True, slots=True, eq=False)  # jobs that share one are alike: answers to them are told by which it is
class PendingDraft:
    """Hold what jobs under way share that were sent at once to nodes that have as much to read."""

    batch: AskedBatch
    unread: int = 0  # tokens of the batch that the drafters of the slowest of its nodes had to read; 0: a few
    is_held_up: bool = False  # they were reading already: when its answer comes tells nothing of that
    readers: frozenset[str] = frozenset()  # the drafters that `unread` is of


_Job = tuple[int, PendingDraft]  # under way, for a sequence of this length
_Answer = tuple[TreeMessage, PendingDraft]


class PendingDrafts:
    """The drafts under way of a verifier's sequences: the last one of each, and the one before if it has no answer."""

    def __init__(self, modes: DraftModes, host_costs: HostCosts, stats: VerifierStats, clock: Clock) -> None:
        """Teach the costs of `modes`; what the host takes for a tree by `host_costs` is a part of them."""
        self.model_costs: Final = DraftCosts(0.0)  # what models took by the clock of the node that fused
        self.error: Final = MeanError()  # of what drafts with models were expected to take, once a batch
        self.guess_error: Final = MeanError()  # of what models alone were
        self._modes = modes
        self._host_costs = host_costs
        self._stats = stats
        self._clock = clock
        self._hops_s = deque[float](maxlen=HOPS)  # from asking to receiving, beyond what that clock says,
        self._ways_s = deque[float](maxlen=HOPS)  # and beyond what models take to guess
        self._steps = deque[tuple[float, float]](maxlen=STEPS)  # of the verifier on the same cores: launch, seconds
        self._last: dict[str, _Job] = {}
        self._answered: list[_Answer] = []  # since the last `learn`
        self._readings: dict[str, list[_Job]] = {}  # jobs that only let drafters read, beside these
        self._overdue: dict[str, _Job] = {}  # the one before, where the sequence went on without its answer

    @property
    def hop_s(self) -> float:
        """Return the seconds of a job's way to the drafters and back; the first ones are those of a start."""
        return DEFAULT_HOP_S if len(self._ways_s) < HOPS else min(self._ways_s)

    def use(self, split: int) -> None:
        """Learn what drafts cost under this split of the machine from now on."""
        self._modes.use(split)
        self.model_costs.use(split)

    def expect_split(self, split: int, slowdown: float) -> None:
        """Expect drafts to take `slowdown` times as long under a split, until some are seen there."""
        self._modes.expect(split, slowdown)
        self.model_costs.expect(split, slowdown)

    def record_step(self, launched_s: float, expected_s: float) -> None:
        """Record that the verifier launched a step on the drafters' cores, by the monotonic clock."""
        self._steps.append((launched_s, expected_s))

    def expect(self, lengths: Iterable[tuple[str, int]], pending: PendingDraft) -> None:
        """Record that a job was sent for each of these requests, whose sequence has this length."""
        last = self._last
        for request_id, length in lengths:
            if request_id in last:
                self._overdue[request_id] = last[request_id]
            last[request_id] = length, pending

    def expect_readings(self, lengths: Iterable[tuple[str, int]], pending: PendingDraft) -> None:
        """Record that a job was sent for each of these requests which only lets its readers read."""
        for request_id, length in lengths:
            others = [one for one in self._readings.get(request_id, ()) if one[1].readers != pending.readers]
            self._readings[request_id] = [*others, (length, pending)]

    def record_reading(self, message: TreeMessage) -> bool:
        """Take an answer for `learn`, once, if it is to a job that only lets drafters read; tell whether it is."""
        if not self._readings:
            return False
        readings = self._readings.get(message.request_id, [])
        for one in readings:
            length, pending = one
            if length == message.base and message.confidence and message.confidence.keys() <= pending.readers:
                readings.remove(one)
                self._answered.append((message, pending))
                return True
        return False

    def record_answer(self, message: TreeMessage) -> bool:
        """Take an answer for `learn`, once; tell whether it answers the request's last job."""
        request_id, base = message.request_id, message.base
        last = self._last.get(request_id)
        if last is not None and last[0] == base:
            del self._last[request_id]
            self._answered.append((message, last[1]))
            return True
        overdue = self._overdue.get(request_id)
        if overdue is not None and overdue[0] == base:
            del self._overdue[request_id]
            self._answered.append((message, overdue[1]))  # or a wait that is too short would never be found so
        return False

    def learn(self) -> None:
        """Learn from the answers that just came, since the last call; once from those of a batch that say the same."""
        counts: dict[tuple[object, ...], int] = {}
        firsts: list[_Answer] = []
        for answer in self._answered:
            message, pending = answer
            says = pending, message.models_s, message.guessed, not message.skipped
            if says in counts:
                counts[says] += 1
            else:
                counts[says] = 1
                firsts.append(answer)
        self._answered.clear()
        for (message, pending), count in zip(firsts, counts.values(), strict=True):
            self._update(message, pending, count)

    def drafting_s(self, batch: int, depth: int) -> float:
        """Return the seconds that models take, the way to them left out; 0 before any draft.

        Tokens guessed ahead do not count, unless drafts are fused by another node: then they are not known.
        """
        return self._modes.guessing.seconds(batch, depth) or self.model_costs.seconds(batch, depth)

    def remove(self, request_id: str) -> None:
        """Remove an ended request."""
        self._last.pop(request_id, None)
        self._overdue.pop(request_id, None)
        self._readings.pop(request_id, None)

    def _update(self, message: TreeMessage, pending: PendingDraft, answers: int) -> None:
        """Learn from so many answers of a batch that say the same."""
        batch, unread = pending.batch, pending.unread
        # Without its readers an answer says nothing of what they read, but how long drafts take at least. What a batch
        # had to read its first answer tells, if its reading began with it.
        unread = 0 if message.confidence.keys().isdisjoint(pending.readers) else unread
        # Before a probe drafters read what they missed, which an ordinary round does not have them do. A round that
        # ended without any draft was too short, whatever they did.
        is_bound = batch.is_probe or (batch.catches_up and bool(message.confidence))
        teaches = not (unread and (pending.is_held_up or batch.is_read))
        came_s = self._clock.monotonic() - batch.at_s
        if 0.0 < message.models_s <= came_s:  # not trusted
            if teaches:
                self._learn_models(message, batch, unread, answers / batch.sequences, is_bound=is_bound)
            if not batch.is_probe:
                self._hops_s.append(came_s - message.models_s)
                # A round that another node fuses is open while its drafts are on their way: most of that is no guess.
                guess_s = self._modes.guessing.seconds(batch.sequences, batch.depth)
                self._ways_s.append(came_s - (min(guess_s, message.models_s) or message.models_s))
            elif not self._hops_s:
                return
            came_s = min(came_s, message.models_s + min(self._hops_s))  # a step in between is no draft's time
        elif batch.is_probe:
            return
        took_s = min(batch.patience_s, came_s)
        if not batch.is_probe:
            self._stats.record_waits(came_s, answers)
            self._stats.metrics.record_trees(took_s, answers)
        if batch.split != self._modes.with_models.costs.split:
            return  # what one split taught is not charged to another
        seconds = took_s + batch.deciding_s + batch.sequences * self._host_costs.tree_s
        beside_s = 0.0 if batch.is_model_free else self._beside_s(batch, took_s)  # the verifier drafts those itself
        if teaches:
            if not (batch.is_model_free or message.skipped or beside_s or unread or batch.is_judged):
                self._judge(batch, seconds)
            self._modes.update_costs(
                batch.sequences,
                batch.depth,
                max(0.0, seconds - beside_s),
                unread,
                share=answers / batch.sequences,
                is_beside=beside_s > 0.0,
                is_bound=is_bound,
                is_model_free=batch.is_model_free,
                skipped=message.skipped,
            )
            batch.is_read = batch.is_read or (unread > 0 and not message.skipped)

    def _learn_models(
        self, message: TreeMessage, batch: AskedBatch, unread: int, share: float, *, is_bound: bool
    ) -> None:
        if batch.split != self.model_costs.split:
            return
        beside_s = self._beside_s(batch, message.models_s)
        models_s, is_beside = max(0.0, message.models_s - beside_s), beside_s > 0.0
        sequences = batch.sequences
        self.model_costs.update(
            sequences, batch.depth, models_s, unread, share=share, is_beside=is_beside, is_bound=is_bound
        )
        if message.guessed and not message.skipped:
            guessed = min(message.guessed, batch.depth)
            if not unread and not is_beside:
                self.guess_error.update(self._modes.guessing.seconds(sequences, guessed), models_s)
            self._modes.guessing.update(
                sequences, guessed, models_s, unread, share=share, is_beside=is_beside, is_bound=is_bound
            )

    def _beside_s(self, batch: AskedBatch, took_s: float) -> float:
        """Return what the verifier worked while drafts were made on its cores, if each side had its half of them.

        What it does once it waits no longer does not count, or a wait that is too short would never be found so.
        """
        at_s, ended_s = batch.at_s, batch.at_s + min(took_s, batch.patience_s)
        return sum(min(own_s, (ended_s - begun_s) / 2.0) for begun_s, own_s in self._steps if at_s < begun_s < ended_s)

    def _judge(self, batch: AskedBatch, seconds: float) -> None:
        """Count how far the expectation was off, by a batch's first answer: the others come with it."""
        batch.is_judged = True
        if seconds > 0.0:
            self.error.update(self._modes.with_models.costs.seconds(batch.sequences, batch.depth), seconds)
