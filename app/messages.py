"""Define the messages between processes and the stored records: frozen, JSON only, no tensors.

Lengths called `base` count the whole sequence, prompt included; `offset` counts generated tokens only. In a draft or
tree, node i (from 1) is `tokens[i - 1]` with the parent `parents[i - 1]`; node 0, the root, is the last committed
token.
"""

from enum import StrEnum
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from pydantic import AliasChoices, BaseModel, Field

from app.answer_form import Thinking, ToolCall
from app.errors import MessageError
from app.request import Message, Sampling, SpeculationBounds, TokenId, TokenLogprobs

LEAST_SURVIVAL = 0.06  # of a guess that drafting goes on from
TARGET = "target"  # the proposer of a token that no drafter guessed
PUBLIC_TENANT = "public"  # the tenant of requests without an API key: Celery's tasks, or all where no keys are used


class Status(StrEnum):
    """A request's state. All but ACTIVE are final."""

    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens or the context's end
    CANCELLED = "cancelled"
    ERROR = "error"


class Record(Message):
    """All that an admitted request's text depends on."""

    id: str
    tenant: str = PUBLIC_TENANT
    prompt_ids: tuple[TokenId, ...] = Field(min_length=1)
    max_tokens: int = Field(ge=1)  # already capped by the context
    eos_ids: tuple[TokenId, ...]  # that end it: the model's, unless it ignores them, and the request's own
    sampling: Sampling
    speculation: SpeculationBounds
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # likeliest tokens wanted beside each token's own log-probability; None: not even that
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    # Of its form: a JSON schema, or Lark. `json_schema` is its name in records of another version.
    grammar: str | None = Field(None, validation_alias=AliasChoices("grammar", "json_schema"))
    prefix: str = ""  # the text of it that the prompt ends with
    calls: bool = False  # tools may be called in it
    thinking: Thinking = Thinking.NO
    min_tokens: int = 0  # of the answer, before one of `eos_ids`
    most_thinking: int | None = None  # tokens of its reasoning
    created_s: float  # wall clock
    is_task: bool = False  # a Celery task waits for the result


class DrafterStats(Message):
    drafted: int = 0
    accepted: int = 0


Count = Annotated[int, Meta(ge=0)]
_CHAIN = tuple(range(64))  # the parents of a draft of as many tokens as a job may ask for


class HotMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the messages of each round: checked when they are read from JSON, not when they are made.

    What uses mail checks it again (`app.stages.fuse`, `Tree.from_message`).
    """

    def json(self) -> str:
        return _ENCODER.encode(self).decode()

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Raises MessageError, which quotes no values."""
        decoder = _DECODERS.get(cls)
        if decoder is None:
            decoder = _DECODERS[cls] = msgspec.json.Decoder(cls, dec_hook=_from_plain)
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise MessageError(f"not a valid {cls.__name__}: {error}") from None


class DrafterCounts(HotMessage, frozen=True, omit_defaults=True):
    drafted: int = 0
    accepted: int = 0


class Stats(HotMessage, frozen=True, omit_defaults=True):
    """`rounds` counts target steps that committed tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_drafter: dict[str, DrafterCounts] = msgspec.field(default_factory=dict)
    first_token_s: float | None = None  # wall clock
    last_token_s: float | None = None
    reused: int = 0  # prompt tokens read from the prefix cache

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, those of default value too."""
        counts = {name: asdict(counts) for name, counts in self.by_drafter.items()}
        return asdict(self) | {"by_drafter": counts}


class Rejected(HotMessage, frozen=True):
    """Wrong guesses, each behind the one before. Instead of the first the target said token `place` of the event."""

    place: Count
    drafter: str
    tokens: tuple[Count, ...]


class Event(HotMessage, frozen=True, omit_defaults=True):
    """Report one commit: tokens `offset ... offset + len(tokens) - 1`, each with its proposer."""

    offset: Count
    tokens: tuple[Count, ...] = ()
    proposers: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()  # of this round, if the request wants them
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, if the request wants them
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the prompt's behind its first, in the first event
    finish_reason: FinishReason | None = None  # set on the last event only
    error: str | None = None
    stats: Stats = msgspec.field(default_factory=Stats)


class DraftJob(HotMessage, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Request drafts after `base` tokens from the chosen drafters and their fuser.

    `tokens` are the sequence's tokens `start ... base - 1`, which the receiver has not been sent. Jobs, drafts and
    trees are hints: unknown fields are ignored, for rolling restarts.
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
    # Seconds of the step with these drafts, in which drafters read and guess on for the next ones; 0: they do not.
    step_s: Annotated[float, Meta(ge=0)] = 0.0
    # Least survival of a guess that models go on from; 0: they go on from any.
    least_survival: Annotated[float, Meta(ge=0, le=1)] = LEAST_SURVIVAL
    # A model's guesses become a tree of at most so many nodes; 0: a path, with second-best guesses as leaves if wanted.
    max_nodes: Annotated[int, Meta(ge=0, le=64)] = 0
    has_leaves: bool = True
    # Tokens that a second of drafting for this sequence costs all that wait for it, over the sequences asked together.
    pace: Annotated[float, Meta(ge=0)] = 0.0
    is_reading: bool = False  # its text is read during the step, without a draft
    is_last: bool = False  # the sequence ended: learn from it and remove it, without a draft
    # Mailboxes of the drafter nodes that guess this round's tokens together, one at a time; empty: each drafts alone.
    sharing: tuple[str, ...] = ()


class DraftReport(HotMessage, frozen=True, forbid_unknown_fields=False):
    """What drafting took a node, for all sequences of one batch. Not trusted."""

    guess_s: float = 0.0  # seconds of guessing
    guessed: int = 0  # tokens of the longest draft guessed in these seconds; those guessed ahead do not count
    batch: int = 0  # sequences drafted for
    read_s: float = 0.0  # seconds of reading tokens meanwhile, other batches' too
    read_tokens: int = 0  # tokens read in these seconds
    seen: int = 0  # tokens of this sequence that the drafter has read


class Draft(HotMessage, frozen=True, forbid_unknown_fields=False):
    """One drafter's guess. Not trusted."""

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
        """False beyond 64 nodes."""
        return self.parents == _CHAIN[: len(self.parents)]


class TokenGuess(HotMessage, frozen=True):
    """One drafter's guess of the next token of a shared path. Not trusted."""

    request_id: str
    base: int
    step: int  # tokens of the path before the guessed one
    drafter: str
    token: int
    confidence: float
    second: int
    second_confidence: float


class SharedPath(HotMessage, frozen=True):
    """The tokens after `base` that the fuser chose for all nodes of a round."""

    request_id: str
    base: int
    tokens: tuple[Count, ...]
    survival: Annotated[float, Meta(ge=0.0, le=1.0)]  # probability that all of them are right


class TreeMessage(HotMessage, frozen=True, forbid_unknown_fields=False):
    """Fused drafts. Nodes by falling survival, parents first."""

    request_id: str
    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]  # probability that the node and all its ancestors are right
    proposers: tuple[tuple[str, ...], ...]  # the drafters behind each node, the most confident first
    confidence: dict[str, float] = msgspec.field(default_factory=dict)  # each drafter's own, the mean over its draft
    reports: dict[str, DraftReport] = msgspec.field(default_factory=dict)  # of the nodes of model drafters, by drafter


class Mail(HotMessage, frozen=True):
    sent_s: float = 0.0  # wall clock; 0: not known


class ToVerifier(Mail, frozen=True, omit_defaults=True):
    """All of it is a hint: the store knows what the verifier owns."""

    adopt: tuple[str, ...] = ()  # request ids now owned by this verifier
    trees: tuple[TreeMessage, ...] = ()
    audit: tuple[str, ...] = ()  # ids of ended requests to replay; another version knows no such field


class ToDrafter(Mail, frozen=True):
    jobs: tuple[DraftJob, ...] = ()
    paths: tuple[SharedPath, ...] = ()


class ToFuser(Mail, frozen=True):
    jobs: tuple[DraftJob, ...] = ()
    drafts: tuple[Draft, ...] = ()
    guesses: tuple[TokenGuess, ...] = ()


class Settle(Mail, frozen=True, kw_only=True):
    request_id: str


class Usage(Message):
    prompt_tokens: int
    completion_tokens: int


class Timing(Message):
    ttft_s: float | None
    total_s: float


class SpeculationReport(Message):
    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    by_drafter: dict[str, DrafterStats]


class Result(Message):
    """A request's result, the same for all clients."""

    id: str
    status: Status
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None  # None while it runs
    usage: Usage
    timing: Timing
    speculation: SpeculationReport
    tool_calls: tuple[ToolCall, ...] | None = None  # that stand in `text`, if the request has tools
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of each token, if the request wants them
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None  # of the prompt's behind its first, if it wants them
    error: str | None = None


FUSE = "fuse"
SETTLE = "settle"


def _to_plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=isinstance(value, TokenLogprobs))
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _from_plain(kind: type[BaseModel], value: Any) -> BaseModel:
    return kind.model_validate(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_to_plain)
_DECODERS: dict[type[HotMessage], Any] = {}  # by kind, each made at its first use


def mailbox_of(kind: str, node: str) -> str:
    return f"{kind}:{node}"
