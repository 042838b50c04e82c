"""The beat's decision: from the queues' depths and the present policy to the next one. A pure function.

Composition of batches and the cut of each tree happen in the verifiers, by measured cost (`schedule`); this sets
the slower bounds they keep to. Backlog at drafters or fusion means that trees come late and that the cores are
wanted elsewhere: drafts are shortened by half each tick, and lengthened again one by one when it is gone.
"""

from dataclasses import dataclass

from app.messages import Policy

LONGEST_DRAFT = Policy().max_draft_tokens
BACKLOG = 4  # items a worker's mailbox may hold without falling behind
CROWD = 24  # sequences on one verifier from which long drafts cannot pay
CROWDED_DRAFT = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What the queues and heartbeats say at one moment."""

    active: int  # requests admitted and not ended
    running: int  # sequences on verifiers
    fuse_waiting: int  # items in the fusion's mailbox
    draft_waiting: int  # items in all drafters' mailboxes
    verifiers: int


def steer(load: Load, policy: Policy) -> Policy:
    """The next policy; the very same object when nothing changes, else one version higher."""
    ceiling = LONGEST_DRAFT if load.running < CROWD * max(1, load.verifiers) else CROWDED_DRAFT
    if max(load.fuse_waiting, load.draft_waiting) > BACKLOG:
        length = policy.max_draft_tokens // 2
    else:
        length = policy.max_draft_tokens + 1
    length = max(0, min(ceiling, length))
    if length == policy.max_draft_tokens:
        return policy
    return policy.model_copy(update={"version": policy.version + 1, "max_draft_tokens": length})
