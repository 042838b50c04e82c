"""Define the policy, which the beat publishes each second."""

from pydantic import ConfigDict, Field

from app.request import Message

BATCH_TOKENS, MOST_BATCH_TOKENS = 2048, 4096  # rows of a step: usual, and in a backlog; memory is planned for them


class Policy(Message):
    """Bound what verifiers do; they follow the newest version.

    Unknown fields are ignored, for rolling restarts.
    """

    model_config = ConfigDict(extra="ignore")

    version: int = 0
    min_draft_tokens: int = Field(0, ge=0, le=64)  # drafted whatever the expected gain
    max_draft_tokens: int = Field(8, ge=0, le=64)  # a sequence and round; 0 stops speculation
    # Rows of a step; the more, the larger the part of prompts in it.
    max_batch_tokens: int = Field(BATCH_TOKENS, ge=16, le=MOST_BATCH_TOKENS)
    # Prompt tokens a step: more where that makes them cheaper, fewer of long contexts (`app.scheduler.prefill`).
    prefill_chunk_tokens: int = Field(256, ge=16)
    draft_wait_s: float = Field(0.25, ge=0.0)  # longest a verifier waits for a tree,
    draft_wait_factor: float = Field(3.0, ge=1.0)  # and otherwise so many times the usual time of drafting
    drafters_per_sequence: int = Field(64, ge=1)  # model drafters asked at most, if the settings allow as many
    pruning: bool = False  # early exit: draft rows may leave a step before its last layer
