"""Choose each token of the paths that drafters on several nodes share (CoSine, papers 1.3).

The most confident guess is chosen and sent to every node of the round. After its first guess a step waits as long
again as that took for the drafters that guessed the last step in time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from app.drafter.draft_steps import DraftStep, drafts_of, fused_step
from app.fuser.early_mail import EarlyMail
from app.messages import Draft, DraftJob, SharedPath, TokenGuess
from app.state import Guess

LEAST_WAIT_S = 0.003  # for the others, once the first guess of a step has come: the jitter of two hops


@dataclass(slots=True)
class _Path:
    job: DraftJob
    awaited: set[str]
    begun_s: float  # when its next step could be guessed
    steps: list[DraftStep] = field(default_factory=list)
    survival: float = 1.0
    guesses: dict[str, Guess] = field(default_factory=dict)  # by drafter
    first_s: float = 0.0  # when the first of them came

    @property
    def is_done(self) -> bool:
        return len(self.steps) >= self.job.max_draft_tokens or self.survival < self.job.least_survival

    @property
    def due_s(self) -> float:
        if not self.guesses:
            return self.job.due_s
        return self.first_s + max(LEAST_WAIT_S, self.first_s - self.begun_s)

    def add(self, guess: TokenGuess, now_s: float) -> None:
        """Add a guess of the next token; those of other steps are late."""
        if self.is_done or guess.step != len(self.steps) or guess.drafter not in self.job.drafters:
            return
        if not self.guesses:
            self.first_s = now_s
        self.awaited.add(guess.drafter)
        own = Guess(guess.token, guess.confidence, guess.second, guess.second_confidence)
        self.guesses.setdefault(guess.drafter, own)

    def advance(self, now_s: float) -> bool:
        """Choose the next token once it is due or guessed by all that are awaited; tell whether it was."""
        if self.is_done or not self.guesses or (now_s < self.due_s and not self.awaited <= self.guesses.keys()):
            return False
        self.awaited &= self.guesses.keys()
        in_order = {name: self.guesses[name] for name in self.job.drafters if name in self.guesses}
        step = fused_step(in_order)
        self.steps.append(step)
        self.survival *= step.confidence
        self.guesses, self.begun_s = {}, now_s
        return True

    def message(self) -> SharedPath:
        return SharedPath(
            request_id=self.job.request_id,
            base=self.job.base,
            tokens=tuple(step.token for step in self.steps),
            survival=self.survival,
        )


class TokenSharing:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._paths: dict[str, _Path] = {}
        self._early = EarlyMail[TokenGuess]()

    def open(self, job: DraftJob, models: Iterable[str], now_s: float) -> None:
        path = self._paths[job.request_id] = _Path(job, set(models), now_s)
        for guess in self._early.take(job):
            path.add(guess, now_s)

    def receive(self, guesses: Iterable[TokenGuess], now_s: float) -> None:
        """Add valid guesses; keep those that arrive before their job."""
        for guess in guesses:
            if not self._is_sound(guess):
                continue
            path = self._paths.get(guess.request_id)
            if path and path.job.base == guess.base:
                path.add(guess, now_s)
            elif path is None or path.job.base < guess.base:
                self._early.keep((guess.drafter, guess.step), guess)

    def advance(self, now_s: float) -> list[tuple[str, SharedPath]]:
        """Choose what can be chosen; return (node's mailbox, path) for each node that is to go on."""
        moved = [path for path in self._paths.values() if path.advance(now_s)]
        return [(box, path.message()) for path in moved if not path.is_done for box in path.job.sharing]

    def is_done(self, job: DraftJob) -> bool:
        path = self._paths.get(job.request_id)
        return path is None or path.is_done

    def close(self, job: DraftJob) -> list[Draft]:
        path = self._paths.pop(job.request_id, None)
        return [] if path is None else drafts_of(job.request_id, job.base, path.steps, has_leaves=job.has_leaves)

    def remove(self, request_id: str) -> None:
        self._paths.pop(request_id, None)

    def wait_s(self, now_s: float) -> float | None:
        """None when no step has a guess."""
        return min((max(0.0, path.due_s - now_s) for path in self._paths.values() if path.guesses), default=None)

    def _is_sound(self, guess: TokenGuess) -> bool:
        tokens, chances = (guess.token, guess.second), (guess.confidence, guess.second_confidence)
        return all(0 <= token < self._vocab_size for token in tokens) and all(0.0 <= p <= 1.0 for p in chances)
