"""What crosses a process or is stored: frozen, validated, JSON only. Token ids, never tensors.

Lengths called `base` count the whole sequence, prompt included; `offset` counts generated tokens only.
In a draft or tree, node i (from 1) is `tokens[i - 1]`; node 0 is the last committed token, the root.
`parents[i - 1]` is node i's parent, so a chain has parents 0, 1, 2, ...
"""

from enum import StrEnum

from pydantic import Field

from app.request import Message, Sampling, Speculation, TokenId, TokenLogprobs

TARGET = "target"  # the proposer of a token no drafter guessed
PUBLIC_TENANT = "public"  # the tenant of what comes without an API key: Celery's tasks, or all where none are in use


class Status(StrEnum):
    """Where a request is. Everything but ACTIVE is final."""

    ACTIVE = "active"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # an end-of-sequence token or a stop string
    LENGTH = "length"  # max_tokens or the context's end
    CANCELLED = "cancelled"
    ERROR = "error"


class Record(Message):
    """An admitted request: everything its text depends on. Never changes."""

    id: str
    tenant: str = PUBLIC_TENANT
    prompt_ids: tuple[TokenId, ...] = Field(min_length=1)
    max_tokens: int = Field(ge=1)  # already capped by the context
    eos_ids: tuple[TokenId, ...]
    sampling: Sampling
    speculation: Speculation
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # likeliest tokens wanted beside each token's own log-probability; None: not even that
    json_schema: str | None = None
    created_s: float  # wall clock
    is_task: bool = False  # a Celery task waits for the result


class DrafterStats(Message):
    """One drafter's part in a request: tokens it had verified, tokens of those that were right."""

    drafted: int = 0
    accepted: int = 0


class Stats(Message):
    """What a request's speculation did so far. `rounds` counts target steps that committed tokens."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    by_drafter: dict[str, DrafterStats] = Field(default_factory=dict)
    first_token_s: float | None = None  # wall clock
    last_token_s: float | None = None


class Event(Message):
    """One commit as a client sees it: tokens `offset ... offset + len(tokens) - 1`, who proposed each."""

    offset: int = Field(ge=0)
    tokens: tuple[TokenId, ...] = ()
    proposers: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each token, if the request wants them
    finish_reason: FinishReason | None = None  # set on the last event only
    error: str | None = None
    stats: Stats = Field(default_factory=Stats)


class DraftJob(Message):
    """A verifier's call for guesses after `base` tokens; sent to the chosen drafters and to whoever fuses their drafts.

    `tokens` are the sequence's tokens `start ... base - 1`: what the receiver does not know yet.
    """

    request_id: str
    tenant: str = PUBLIC_TENANT
    verifier: str  # mailbox the tree goes to
    to: str = ""  # mailbox of the receiver, which is told only what it does not know
    fuser: str  # mailbox where the drafts are fused: the fusion task's, or the node's that alone was asked
    base: int = Field(ge=1)
    start: int = Field(ge=0)
    tokens: tuple[TokenId, ...]
    prompt_length: int = Field(ge=1)
    max_draft_tokens: int = Field(ge=1, le=64)
    drafters: tuple[str, ...]  # those asked of the receiver; a fusion gets all, waits for those not in its process
    sampling: Sampling
    due_s: float  # wall clock: after this the verifier goes on without
    state: str | None = Field(None, max_length=65536)  # base64 of the target's last hidden state, d float16, where it
    # chose the last token: for drafters that read it
    run_ahead: bool = False  # drafters do not take its cores from the verifier: they may guess on while it works
    skip_models_above: float = (
        1.0  # chance of the tables' first token from which on a node that fuses need not run its models
    )
    is_last: bool = False  # the sequence ended: learn from it and forget it, no draft is wanted


class Draft(Message):
    """One drafter's guess. Not trusted: the fusion checks every field against the job."""

    request_id: str
    base: int
    drafter: str
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidences: tuple[float, ...]  # probability the drafter gave each token, given its ancestors
    borrowed: tuple[int, ...] = ()  # nodes that others guessed: there for what hangs below, no opinion of this drafter


class TreeMessage(Message):
    """The fused drafts of one sequence on their way to its verifier. Nodes by falling survival, parents first."""

    request_id: str
    base: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]  # probability that the node and all its ancestors are right
    proposers: tuple[tuple[str, ...], ...]  # the drafters behind each node, the most confident first
    models_s: float = 0.0  # what models took for it and the trees that came with it; 0: none was run, or nobody knows
    skipped: tuple[str, ...] = ()  # drafters that were asked and not run: the tables were sure enough
    confidence: dict[str, float] = Field(default_factory=dict)  # each drafter's own, the mean over its draft


class Mail(Message):
    """An item in a mailbox."""

    sent_s: float = 0.0  # wall clock; 0: not said


class ToVerifier(Mail):
    """An item in a verifier's mailbox. All of it is a hint: the store knows what the verifier owns."""

    adopt: tuple[str, ...] = ()  # request ids now owned by this verifier
    trees: tuple[TreeMessage, ...] = ()


class ToDrafter(Mail):
    """An item in a drafter's mailbox."""

    jobs: tuple[DraftJob, ...] = ()


class ToFuser(Mail):
    """An item in the fusion task's mailbox."""

    jobs: tuple[DraftJob, ...] = ()
    drafts: tuple[Draft, ...] = ()


class Settle(Mail):
    """An item in control's mailbox: this request ended, and its Celery task wants the result."""

    request_id: str


class Usage(Message):
    """Token counts, as clients know them."""

    prompt_tokens: int
    completion_tokens: int


class Timing(Message):
    """Seconds since admission."""

    ttft_s: float | None
    total_s: float


class SpeculationReport(Message):
    """What speculation did for a request; `mean_accepted_length` is tokens committed a target step."""

    rounds: int
    drafted: int
    accepted: int
    mean_accepted_length: float
    by_drafter: dict[str, DrafterStats]


class Result(Message):
    """The one object every door gives back: CLI, JSON API, Celery."""

    id: str
    status: Status
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None  # None while it runs
    usage: Usage
    timing: Timing
    speculation: SpeculationReport
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of each token, if they were asked for
    error: str | None = None


FUSE = "fuse"
SETTLE = "settle"


def mailbox_of(kind: str, node: str) -> str:
    """The mailbox of one worker instance: its caches are why it has its own."""
    return f"{kind}:{node}"
