"""Describe the load of a deployment, as last reported: at most one heartbeat old."""

from pydantic import Field

from app.messages import DrafterStats
from app.request import Message


class MailboxLoad(Message):
    waiting: int = 0  # items
    oldest_s: float = 0.0  # how long the first of them has waited, by the clocks of two processes


class VerifierLoad(Message):
    """A verifier. Means are over recent rounds or steps; 0: none yet."""

    sequences: int = 0  # that it runs, those still in their prompt included
    prompt_tokens: int = 0  # of theirs, still to be read
    contexts: tuple[int, ...] = ()  # cached tokens of those past their prompt, falling
    step_s: float = 0.0  # a step of all of these without drafts, by its step costs
    draft_wait_s: float = 0.0  # from requesting drafts to having them
    accepted_length: float = 0.0  # tokens a round, of rounds with drafts
    by_drafter: dict[str, DrafterStats] = Field(default_factory=dict)  # verified and right, since its start


class Load(Message):
    """The whole deployment. Mailboxes and busy parts go by `kind:node`, or by the kind where all nodes share one."""

    active: int = 0  # requests admitted and not ended
    waiting_room: int = 0  # requests of tasks for which there is no room yet
    drafters: int = 0  # model drafters alive, by name
    mailboxes: dict[str, MailboxLoad] = Field(default_factory=dict)
    busy: dict[str, float] = Field(default_factory=dict)  # part of the last seconds in which a process worked, 0 ... 1
    verifiers: tuple[VerifierLoad, ...] = ()

    @property
    def running(self) -> int:
        return sum(one.sequences for one in self.verifiers)

    def of(self, kind: str) -> list[MailboxLoad]:
        return [box for name, box in self.mailboxes.items() if name.partition(":")[0] == kind]

    def busiest(self, kind: str) -> float | None:
        """Return the busy part of a kind's busiest process, 0 ... 1; None if none reports it."""
        return max((part for name, part in self.busy.items() if name.partition(":")[0] == kind), default=None)
