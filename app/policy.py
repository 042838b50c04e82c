"""Define the policy: the controller publishes it each second, verifiers follow the newest version."""

from pydantic import ConfigDict, Field

from app.request import Message


class Steering(Message):
    """Remember the controller's own state from tick to tick; it alone reads it. Times are wall clock."""

    since_s: dict[str, float] = Field(default_factory=dict)  # by field: since when another value is wanted
    changed_s: dict[str, float] = Field(default_factory=dict)  # by field: of its last change
    choked: int = 0  # draft length at which the drafters began to lag last; 0: none is known
    retry_s: float = 0.0  # when that length may be tried again
    backoff_s: float = 0.0  # seconds from their catching up to that retry


class Policy(Message):
    """Bound what verifiers do; they follow the newest version they have seen.

    Fields that only another version knows are left out: both read the same one during a rolling restart.
    """

    model_config = ConfigDict(extra="ignore")

    version: int = 0
    min_draft_tokens: int = Field(0, ge=0, le=64)  # drafted whatever the expected gain
    max_draft_tokens: int = Field(8, ge=0, le=64)  # a sequence and round; 0 stops speculation
    max_batch_tokens: int = Field(2048, ge=16)  # packed rows a verifier step, prefill included
    # Prompt tokens a step: more where that makes them cheaper, fewer of long contexts (`app.scheduler.prefill`).
    prefill_chunk_tokens: int = Field(256, ge=16)
    draft_wait_s: float = Field(0.25, ge=0.0)  # longest a verifier waits for a tree,
    draft_wait_factor: float = Field(3.0, ge=1.0)  # and otherwise so many times the usual time of drafting
    drafters_per_sequence: int = Field(64, ge=1)  # model drafters asked at most, if the settings allow as many
    pruning: bool = False  # early exit: draft rows may leave a step before its last layer
    steering: Steering = Steering()
