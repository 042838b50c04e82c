"""Stand in for the web tier's neighbours: a deployment that rings no worker, a verifier without a model.

Store, admission, placement, tokenizer and HTTP are real. The verifier commits the tokens of its script, a few a round.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Self
from uuid import uuid4

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.messages import TARGET, DrafterCounts, Event, FinishReason, Record, Rejected, Stats
from app.request import TokenLogprobs
from app.store.protocol import Outcome
from workers.celery_app import make_celery
from workers.deployment import Deployment

ROUND = 3  # tokens a round: two drafted, one the target's own
DRAFTERS = ("lookup", "smol-general")
WRONG = 260  # the id of a rejected guess


class SilentDeployment(Deployment):
    """Ring no worker: a real deployment, whose admitted requests lie in the store."""

    def ring(self, mailbox: str) -> None:
        """Send no Celery task."""

    @classmethod
    def of(cls, settings: Settings, tokenizer: Tokenizer) -> Self:
        """Connect to the settings' Redis, once it is needed."""
        return cls(settings, make_celery(settings), tokenizer)


@dataclass
class ScriptedVerifier:
    """Answer every request with `answer`, a round each `pause_s` while `going` is set."""

    deployment: Deployment
    answer: list[int]
    pause_s: float = 0.005
    going: threading.Event = field(default_factory=threading.Event)
    fail: str | None = None  # end with this error after the first round
    seen: list[str] = field(default_factory=list)  # ids of its requests

    def __post_init__(self) -> None:
        self.going.set()
        self._owner = uuid4().hex
        self._running: dict[str, tuple[Record, int, Stats]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "ScriptedVerifier":
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.pause_s):
            self._beat()
            self._adopt()
            if self.going.is_set():
                self._step()

    def _adopt(self) -> None:
        for orphan in self.deployment.requests.orphans({"stand-in"}):
            self.deployment.requests.assign(orphan.request_id, self._owner, "stand-in")
        for request_id in self.deployment.requests.owned(self._owner) - self._running.keys():
            found = self.deployment.requests.snapshot(request_id)
            self._running[request_id] = (found.record, len(found.tokens), found.stats)
            self.seen.append(request_id)

    def _beat(self) -> None:
        for kind in ("verify", "control"):
            info = {"target": "stand-in"}
            self.deployment.nodes.beat(kind, self._owner, self._owner, progress_s=time.time(), info=info)

    def _step(self) -> None:
        events = [(request_id, self._event(*state)) for request_id, state in self._running.items()]
        for (request_id, event), outcome in zip(
            events, self.deployment.requests.commit(self._owner, events), strict=True
        ):
            record, offset, _ = self._running.pop(request_id)
            if outcome is Outcome.COMMITTED and event.finish_reason is None:
                self._running[request_id] = (record, offset + len(event.tokens), event.stats)

    def _event(self, record: Record, offset: int, stats: Stats) -> Event:
        if self.fail is not None and offset:
            return Event(offset=offset, finish_reason=FinishReason.ERROR, error=self.fail, stats=stats)
        end = min(offset + ROUND, record.max_tokens, len(self.answer))
        tokens = tuple(self.answer[offset:end])
        by_drafter = record.speculation.enabled
        proposers = tuple(DRAFTERS[i % 2] if by_drafter and i < len(tokens) - 1 else TARGET for i in range(len(tokens)))
        reason = None
        if end == len(self.answer):
            reason = FinishReason.STOP
        elif end == record.max_tokens:
            reason = FinishReason.LENGTH
        return Event(
            offset=offset,
            tokens=tokens,
            proposers=proposers,
            rejected=_rejected(record, tokens),
            logprobs=_logprobs(record, tokens),
            prompt_logprobs=() if offset or record.prompt_logprobs is None else _scores(record),
            finish_reason=reason,
            stats=_after(stats, tokens),
        )


def _rejected(record: Record, tokens: tuple[int, ...]) -> tuple[Rejected, ...]:
    """Reject two guesses in place of the last token."""
    if not (record.speculation.enabled and record.speculation.rejected and tokens):
        return ()
    return (Rejected(place=len(tokens) - 1, drafter=DRAFTERS[1], tokens=(WRONG, tokens[-1])),)


def _scores(record: Record) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(logprob=-0.5 * i) for i in range(1, len(record.prompt_ids)))


def _logprobs(record: Record, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    """Give each token the same chance as one other."""
    if record.logprobs is None:
        return ()
    return tuple(TokenLogprobs(logprob=-0.7, top=((token, -0.7), (17, -0.7))[: record.logprobs]) for token in tokens)


def _after(stats: Stats, tokens: tuple[int, ...]) -> Stats:
    drafted = stats.drafted + ROUND
    accepted = stats.accepted + len(tokens) - 1
    return Stats(
        rounds=stats.rounds + 1,
        drafted=drafted,
        accepted=accepted,
        by_drafter={DRAFTERS[0]: DrafterCounts(drafted=drafted, accepted=accepted)},
        first_token_s=stats.first_token_s or time.time(),
        last_token_s=time.time(),
    )
