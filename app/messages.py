"""What crosses a process or is stored: frozen, validated, JSON only. Token ids, never tensors.

Lengths called `base` count the whole sequence, prompt included; `offset` counts generated tokens only.
In a draft or tree, node i (from 1) is `tokens[i - 1]`; node 0 is the last committed token, the root.
`parents[i - 1]` is node i's parent, so a chain has parents 0, 1, 2, ...
"""

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from app.request import MAX_LOGPROBS, ResponseFormat, StopString, TokenLogprobs

TARGET = "target"  # the proposer of a token no drafter guessed
NOBODY = "public"  # the tenant of what comes without an API key: Celery's tasks, or all where none are in use
TokenId = Annotated[int, Field(ge=0)]
MAX_SEED = 2**63 - 1


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # inputs are prompts


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


class Sampling(Message):
    """How the target's token is chosen (design D1): bias and penalties, mask, temperature, top-k, top-p, min-p."""

    temperature: float = Field(0.0, ge=0.0, le=10.0, allow_inf_nan=False, description="0 is greedy")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus mass; 1 keeps all")
    top_k: int = Field(0, ge=0, description="keep the k most likely tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="keep tokens at least this fraction of the likeliest")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="same seed, same text; drawn at admission if absent")
    choice: int = Field(0, ge=0, lt=2**32, description="which of the many texts of one seed")
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0, description="times a token's count so far, off its logit")
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0, description="off the logit of every token seen so far")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]] = Field(
        default_factory=dict, max_length=1024, description="token id to what is added to its logit"
    )
    allowed_token_ids: tuple[TokenId, ...] | None = Field(
        None, min_length=1, max_length=65536, description="if given, no other token can be said"
    )


class Speculation(Message):
    """A request's own bounds on speculation. They change its speed, never its text."""

    enabled: bool = True
    max_draft_tokens: int | None = Field(None, ge=0, le=64, description="most draft tokens verified a round")
    drafters: tuple[str, ...] | None = Field(None, description="only these, by name; a name nobody has is refused")


class ChatMessage(Message):
    """One turn of a conversation."""

    role: str = Field(pattern=r"^(system|user|assistant|tool)$")
    content: str


class GenerateRequest(Sampling):
    """What a caller asks for: the JSON API's body, the Celery task's keyword arguments, the CLI's flags."""

    prompt: str | None = Field(None, description="text; becomes one user turn unless raw")
    messages: tuple[ChatMessage, ...] | None = Field(
        None, min_length=1, description="a conversation, instead of prompt"
    )
    raw: bool = Field(False, description="continue the prompt as it stands, without the chat template")
    max_tokens: int = Field(256, ge=1, description="most tokens to generate")
    stop: tuple[StopString, ...] = Field((), max_length=16, description="strings that end the text before them")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="give each token's log-probability, and so many likeliest tokens"
    )
    response_format: ResponseFormat | None = Field(None, description="JSON, or JSON of a schema")
    speculation: Speculation = Field(default_factory=Speculation, description="bounds, or just true or false")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("speculation", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {"enabled": value} if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.raw and self.messages is not None:
            raise ValueError("raw needs prompt, not messages")
        if self.json_schema is not None and self.allowed_token_ids is not None:
            raise ValueError("give either response_format or allowed_token_ids")
        return self

    @property
    def json_schema(self) -> str | None:
        """The schema that the answer must follow, as JSON."""
        return None if self.response_format is None else self.response_format.schema_text()

    def sampling(self, seed: int) -> Sampling:
        """The sampling part alone, with its seed settled."""
        return Sampling(**{**{name: getattr(self, name) for name in Sampling.model_fields}, "seed": seed})


class Record(Message):
    """An admitted request: everything its text depends on. Never changes."""

    id: str
    tenant: str = NOBODY
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
    tenant: str = NOBODY
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
    enough: float = 1.0  # chance of the tables' first token from which on a node that fuses need not run its models
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
    spared: tuple[str, ...] = ()  # drafters that were asked and not run: the tables were sure enough
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
