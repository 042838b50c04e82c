"""Define the messages between processes and the stored records: frozen, JSON only, no tensors.

What is made and read in each round (`HotMessage`) is checked where it is read from JSON and nowhere
else: this process's own objects are right by their types, and mail is looked at again where it is
used (`app.stages.fuse`, `Tree.from_message`). What comes through a door, once a request, is checked
whenever it is made (`app.request.Message`).

Lengths called `base` count the whole sequence, prompt included; `offset` counts generated tokens only.
In a draft or tree, node i (from 1) is `tokens[i - 1]`; node 0 is the last committed token, the root.
`parents[i - 1]` is node i's parent, so a chain has parents 0, 1, 2, ...
"""

from enum import StrEnum
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from app.errors import MessageError
from app.request import Message, Sampling, SpeculationBounds, TokenId, TokenLogprobs

LEAST_SURVIVAL = 0.06  # of a guess that drafting goes on from
TARGET = "target"  # the proposer of a token that no drafter guessed
PUBLIC_TENANT = "public"  # the tenant of requests without an API key: Celery's tasks, or all where no keys are used


class Status(StrEnum):
    """Name a request's state. All but ACTIVE are final."""

    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Name the reason of a request's end."""

    STOP = "stop"  # an end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens or the context's end
    CANCELLED = "cancelled"
    ERROR = "error"


class Record(Message):
    """Hold an admitted request: all that its text depends on. Never changes."""

    id: str
    tenant: str = PUBLIC_TENANT
    prompt_ids: tuple[TokenId, ...] = Field(min_length=1)
    max_tokens: int = Field(ge=1)  # already capped by the context
    eos_ids: tuple[TokenId, ...]
    sampling: Sampling
    speculation: SpeculationBounds
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # likeliest tokens wanted beside each token's own log-probability; None: not even that
    json_schema: str | None = None
    created_s: float  # wall clock
    is_task: bool = False  # a Celery task waits for the result


class DrafterStats(Message):
    """Report one drafter's tokens: those verified, and of those the accepted."""

    drafted: int = 0
    accepted: int = 0


Count = Annotated[int, Meta(ge=0)]
_CHAIN = tuple(range(64))  # the parents of a draft of as many tokens as a job may ask for


class HotMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the messages of each round: checked when they are read, not when they are made.

    The JSON is that of the same fields as an `app.request.Message`.
    """

    def json(self) -> str:
        """Write it as JSON, every field."""
        return _ENCODER.encode(self).decode()

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Read it from JSON. Raises MessageError, which quotes no values."""
        decoder = _DECODERS.get(cls)
        if decoder is None:
            decoder = _DECODERS[cls] = msgspec.json.Decoder(cls, dec_hook=_from_plain)
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise MessageError(f"not a valid {cls.__name__}: {error}") from None


class DrafterCounts(HotMessage, frozen=True, omit_defaults=True):
    """Count one drafter's tokens in a request: those verified, and of those the accepted."""

    drafted: int = 0
    accepted: int = 0


class Stats(HotMessage, frozen=True, omit_defaults=True):
    """Count a request's speculation so far. `rounds` counts target steps that committed tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_drafter: dict[str, DrafterCounts] = msgspec.field(default_factory=dict)
    first_token_s: float | None = None  # wall clock
    last_token_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON has them, those of default value too: what clients are shown."""
        counts = {name: asdict(counts) for name, counts in self.by_drafter.items()}
        return asdict(self) | {"by_drafter": counts}


class Event(HotMessage, frozen=True, omit_defaults=True):
    """Report one commit: tokens `offset ... offset + len(tokens) - 1`, each with its proposer.

    Stored as JSON without what is default, but for `stats`, which are always written.
    """

    offset: Count
    tokens: tuple[Count, ...] = ()
    proposers: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, if the request wants them
    finish_reason: FinishReason | None = None  # set on the last event only
    error: str | None = None
    stats: Stats = msgspec.field(default_factory=Stats)


class DraftJob(HotMessage, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Request drafts after `base` tokens: from a verifier to the chosen drafters and to their fuser.

    `tokens` are the sequence's tokens `start ... base - 1`, which the receiver has not been sent. Jobs, drafts and
    trees are hints: fields that only another version writes are left out, as during a rolling restart.
    """

    request_id: str
    tenant: str = PUBLIC_TENANT
    verifier: str  # mailbox the tree goes to
    to: str = ""  # mailbox of the receiver, which is sent only what it lacks
    fuser: str  # mailbox of the fuser: the shared one, or that of the only drafter node chosen
    base: Annotated[int, Meta(ge=1)]
    start: Count
    tokens: tuple[Count, ...]
    prompt_length: Annotated[int, Meta(ge=1)]
    max_draft_tokens: Annotated[int, Meta(ge=1, le=64)]
    drafters: tuple[str, ...]  # those chosen at the receiver; a fuser gets all, and waits for those outside its process
    sampling: Sampling
    due_s: float  # wall clock: after this the verifier goes on without
    # Base64 of the target's last hidden state, d float16, where it chose the last token: for drafters that read it.
    state: Annotated[str, Meta(max_length=65536)] | None = None
    run_ahead: bool = False  # drafters share no cores with the verifier: they may run ahead while it works
    # Least survival of a guess that models go on from; 0: they go on from any.
    least_survival: Annotated[float, Meta(ge=0, le=1)] = LEAST_SURVIVAL
    is_last: bool = False  # the sequence ended: learn from it and remove it, without a draft
    # Mailboxes of the drafter nodes that guess this round's tokens together, one at a time; empty: each drafts alone.
    sharing: tuple[str, ...] = ()


class DraftReport(HotMessage, frozen=True, forbid_unknown_fields=False):
    """Report what drafting took a node, for all sequences that it drafted for at once. Not trusted."""

    guess_s: float = 0.0  # seconds of guessing
    guessed: int = 0  # tokens of the longest draft guessed in these seconds; those guessed ahead do not count
    batch: int = 0  # sequences drafted for
    read_s: float = 0.0  # seconds of reading tokens before guessing
    read_tokens: int = 0  # tokens read in these seconds
    seen: int = 0  # tokens of this sequence that the drafter has read


class Draft(HotMessage, frozen=True, forbid_unknown_fields=False):
    """Hold one drafter's guess. Not trusted: the fuser checks every field against the job."""

    request_id: str
    base: int
    drafter: str
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidences: tuple[float, ...]  # probability the drafter gave each token, given its ancestors
    borrowed: tuple[int, ...] = ()  # nodes of other drafters: parents of this one's, not its own guesses
    report: DraftReport | None = None  # of the node that drafted; None: not known

    @property
    def is_chain(self) -> bool:
        """Tell whether each node hangs on the one before, as in most drafts; False of those too long."""
        return self.parents == _CHAIN[: len(self.parents)]


class TokenGuess(HotMessage, frozen=True):
    """Hold one drafter's guess of the next token of a path that several nodes share. Not trusted, as a draft is not."""

    request_id: str
    base: int
    step: int  # tokens of the path before the guessed one
    drafter: str
    token: int
    confidence: float
    second: int
    second_confidence: float


class SharedPath(HotMessage, frozen=True):
    """Hold the tokens after `base` that all nodes of a round go on from: the fuser's choice of each, from the first."""

    request_id: str
    base: int
    tokens: tuple[Count, ...]
    survival: Annotated[float, Meta(ge=0.0, le=1.0)]  # probability that all of them are right


class TreeMessage(HotMessage, frozen=True, forbid_unknown_fields=False):
    """Hold a sequence's fused drafts for its verifier. Nodes by falling survival, parents first."""

    request_id: str
    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]  # probability that the node and all its ancestors are right
    proposers: tuple[tuple[str, ...], ...]  # the drafters behind each node, the most confident first
    confidence: dict[str, float] = msgspec.field(default_factory=dict)  # each drafter's own, the mean over its draft
    reports: dict[str, DraftReport] = msgspec.field(default_factory=dict)  # of the nodes of model drafters, by drafter


class Mail(HotMessage, frozen=True):
    """Base of the items in mailboxes."""

    sent_s: float = 0.0  # wall clock; 0: not known


class ToVerifier(Mail, frozen=True):
    """Hold an item of a verifier's mailbox. All of it is a hint: the store knows what the verifier owns."""

    adopt: tuple[str, ...] = ()  # request ids now owned by this verifier
    trees: tuple[TreeMessage, ...] = ()


class ToDrafter(Mail, frozen=True):
    """Hold an item of a drafter's mailbox."""

    jobs: tuple[DraftJob, ...] = ()
    paths: tuple[SharedPath, ...] = ()


class ToFuser(Mail, frozen=True):
    """Hold an item of a fuser's mailbox."""

    jobs: tuple[DraftJob, ...] = ()
    drafts: tuple[Draft, ...] = ()
    guesses: tuple[TokenGuess, ...] = ()


class Settle(Mail, frozen=True, kw_only=True):
    """Hold an item of control's mailbox: a request ended, and its Celery task waits for the result."""

    request_id: str


class Usage(Message):
    """Count tokens, as clients do."""

    prompt_tokens: int
    completion_tokens: int


class Timing(Message):
    """Hold durations since admission."""

    ttft_s: float | None
    total_s: float


class SpeculationReport(Message):
    """Report a request's speculation; `mean_accepted_length` is tokens committed a target step."""

    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    by_drafter: dict[str, DrafterStats]


class Result(Message):
    """Hold a request's result, the same from CLI, JSON API and Celery."""

    id: str
    status: Status
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None  # None while it runs
    usage: Usage
    timing: Timing
    speculation: SpeculationReport
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of each token, if the request wants them
    error: str | None = None


FUSE = "fuse"
SETTLE = "settle"


def _to_plain(value: Any) -> Any:
    """Write what a hot message holds of the callers' messages; without defaults, as events are stored."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=isinstance(value, TokenLogprobs))
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _from_plain(kind: type[BaseModel], value: Any) -> BaseModel:
    """Read such a part; a wrong one raises ValueError, without its values."""
    return kind.model_validate(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_to_plain)
_DECODERS: dict[type[HotMessage], Any] = {}  # by kind, each made at its first use


def mailbox_of(kind: str, node: str) -> str:
    """Name the mailbox of one worker, which has its own since it has caches of its own."""
    return f"{kind}:{node}"
