"""Define the messages between processes and the stored records: frozen, validated, JSON only, no tensors.

Lengths called `base` count the whole sequence, prompt included; `offset` counts generated tokens only.
In a draft or tree, node i (from 1) is `tokens[i - 1]`; node 0 is the last committed token, the root.
`parents[i - 1]` is node i's parent, so a chain has parents 0, 1, 2, ...
"""

from enum import StrEnum

from pydantic import Field

from app.request import Message, Sampling, SpeculationBounds, TokenId, TokenLogprobs

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
    """Count one drafter's tokens in a request: those verified, and of those the accepted."""

    drafted: int = 0
    accepted: int = 0


class Stats(Message):
    """Count a request's speculation so far. `rounds` counts target steps that committed tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_drafter: dict[str, DrafterStats] = Field(default_factory=dict)
    first_token_s: float | None = None  # wall clock
    last_token_s: float | None = None


class Event(Message):
    """Report one commit: tokens `offset ... offset + len(tokens) - 1`, each with its proposer."""

    offset: int = Field(ge=0)
    tokens: tuple[TokenId, ...] = ()
    proposers: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, if the request wants them
    finish_reason: FinishReason | None = None  # set on the last event only
    error: str | None = None
    stats: Stats = Field(default_factory=Stats)


class DraftJob(Message):
    """Request drafts after `base` tokens: from a verifier to the chosen drafters and to their fuser.

    `tokens` are the sequence's tokens `start ... base - 1`, which the receiver has not been sent.
    """

    request_id: str
    tenant: str = PUBLIC_TENANT
    verifier: str  # mailbox the tree goes to
    to: str = ""  # mailbox of the receiver, which is sent only what it lacks
    fuser: str  # mailbox of the fuser: the shared one, or that of the only drafter node chosen
    base: int = Field(ge=1)
    start: int = Field(ge=0)
    tokens: tuple[TokenId, ...]
    prompt_length: int = Field(ge=1)
    max_draft_tokens: int = Field(ge=1, le=64)
    drafters: tuple[str, ...]  # those chosen at the receiver; a fuser gets all, and waits for those outside its process
    sampling: Sampling
    due_s: float  # wall clock: after this the verifier goes on without
    state: str | None = Field(None, max_length=65536)  # base64 of the target's last hidden state, d float16, where
    # it chose the last token: for drafters that read it
    run_ahead: bool = False  # drafters share no cores with the verifier: they may run ahead while it works
    # Chance of the model-free drafters' first token from which on a node that fuses skips its models.
    skip_models_above: float = 1.0
    is_last: bool = False  # the sequence ended: learn from it and remove it, without a draft
    # Mailboxes of the drafter nodes that guess this round's tokens together, one at a time; empty: each drafts alone.
    sharing: tuple[str, ...] = ()


class Draft(Message):
    """Hold one drafter's guess. Not trusted: the fuser checks every field against the job."""

    request_id: str
    base: int
    drafter: str
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidences: tuple[float, ...]  # probability the drafter gave each token, given its ancestors
    borrowed: tuple[int, ...] = ()  # nodes of other drafters: parents of this one's, not its own guesses


class TokenGuess(Message):
    """Hold one drafter's guess of the next token of a path that several nodes share. Not trusted, as a draft is not."""

    request_id: str
    base: int
    step: int  # tokens of the path before the guessed one
    drafter: str
    token: int
    confidence: float
    second: int
    second_confidence: float


class SharedPath(Message):
    """Hold the tokens after `base` that all nodes of a round go on from: the fuser's choice of each, from the first."""

    request_id: str
    base: int
    tokens: tuple[TokenId, ...]
    survival: float = Field(ge=0.0, le=1.0)  # probability that all of them are right


class TreeMessage(Message):
    """Hold a sequence's fused drafts for its verifier. Nodes by falling survival, parents first."""

    request_id: str
    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]  # probability that the node and all its ancestors are right
    proposers: tuple[tuple[str, ...], ...]  # the drafters behind each node, the most confident first
    # From the job's arrival to the models' drafts, by the fusing node's clock; 0: none ran, or it is not known.
    models_s: float = 0.0
    guessed: int = Field(default=0, ge=0)  # tokens of the longest draft guessed in that time, not ahead; 0: not known
    skipped: tuple[str, ...] = ()  # drafters that were chosen and not run: the model-free ones were sure enough
    confidence: dict[str, float] = Field(default_factory=dict)  # each drafter's own, the mean over its draft


class Mail(Message):
    """Base of the items in mailboxes."""

    sent_s: float = 0.0  # wall clock; 0: not known


class ToVerifier(Mail):
    """Hold an item of a verifier's mailbox. All of it is a hint: the store knows what the verifier owns."""

    adopt: tuple[str, ...] = ()  # request ids now owned by this verifier
    trees: tuple[TreeMessage, ...] = ()


class ToDrafter(Mail):
    """Hold an item of a drafter's mailbox."""

    jobs: tuple[DraftJob, ...] = ()
    paths: tuple[SharedPath, ...] = ()


class ToFuser(Mail):
    """Hold an item of a fuser's mailbox."""

    jobs: tuple[DraftJob, ...] = ()
    drafts: tuple[Draft, ...] = ()
    guesses: tuple[TokenGuess, ...] = ()


class Settle(Mail):
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


def mailbox_of(kind: str, node: str) -> str:
    """Name the mailbox of one worker, which has its own since it has caches of its own."""
    return f"{kind}:{node}"
