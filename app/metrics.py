"""Define every metric that processes add up: name, meaning, unit, labels. `web/ops/metrics.py` serves them.

Sums over all processes of a deployment and over their restarts, in Redis. Names follow Prometheus, without `_total`.
"""

from dataclasses import dataclass

PREFIX = "paceline_"
GROUP = "metrics"  # of the store's sums
Change = tuple[list[float], list[float]]  # (kept, added): each sum becomes sum * kept + added

# Upper bounds. Seconds: from a small model's step on a GPU to a long prompt on a slow machine.
STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
WAIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
FIRST_TOKEN_SECONDS = (0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_SECONDS = (0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
SEQUENCES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
LENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0, 16.0)
DEEPEST = 16  # a deeper position in a draft counts as this one


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, so hashed without work
class Metric:
    """A counter, or with `buckets` (upper bounds without infinity) a histogram."""

    name: str  # without the prefix
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    values: tuple[str, ...] = ()  # known values of the one label: shown as zero before any is counted

    @property
    def size(self) -> int:
        """The number of sums of a series; a histogram has one count a bucket, one for infinity, and the total."""
        return len(self.buckets) + 2 if self.buckets else 1


ADMITTED = Metric(
    "requests_admitted", "Requests taken in, by where they came from: web or task.", ("door",), values=("web", "task")
)
REFUSED = Metric(
    "requests_refused", "Requests turned away, by why: full, or invalid.", ("reason",), values=("full", "invalid")
)
ENDED = Metric(
    "requests_ended",
    "Requests that ended: stop, length, cancelled, error.",
    ("reason",),
    values=("stop", "length", "cancelled", "error"),
)
PROMPT_TOKENS = Metric("prompt_tokens", "Prompt tokens of requests that verifiers started.")
REUSED_TOKENS = Metric("prompt_tokens_reused", "Of those, tokens read from the prefix cache instead of computed.")
TOKENS = Metric("tokens_committed", "Tokens committed, by who proposed them; target: the target itself.", ("proposer",))
FIRST_TOKEN = Metric("first_token_seconds", "From admission to a request's first token.", (), FIRST_TOKEN_SECONDS)
PER_TOKEN = Metric("per_token_seconds", "Mean time a token after the first, of requests that ended.", (), TOKEN_SECONDS)

STEP = Metric("step_seconds", "The target's forward pass and the walk of its trees, a step.", (), STEP_SECONDS)
BATCH = Metric("step_sequences", "Sequences in a step.", (), SEQUENCES)
PACKED = Metric("step_packed_tokens", "Rows of a step: prompts, last tokens and draft tokens together.", (), ROWS)
STEP_ERRORS = Metric("step_errors", "Steps that failed, and were taken apart.")
ACCEPTED_LENGTH = Metric("accepted_length_tokens", "Tokens a round committed, the target's own included.", (), LENGTHS)
DRAFTED = Metric(
    "draft_tokens_verified", "Draft tokens verified, by drafter and depth in the tree.", ("drafter", "position")
)
ACCEPTED = Metric("draft_tokens_accepted", "Of those, the right ones.", ("drafter", "position"))
ASKED = Metric("rounds_asked", "Rounds in which a drafter was asked, tables included.", ("drafter",))
ROUNDS_DRAFTED = Metric("rounds_drafted", "Rounds in which draft tokens were verified.")
DRAFT_DEPTH = Metric("draft_depth_tokens", "The longest branches of their trees, added up.")
AT_LOAD = Metric(
    "rounds_at_load", "Rounds, by how many sequences were in the step (up to the number given).", ("sequences",)
)
DRAFTED_AT_LOAD = Metric("draft_tokens_at_load", "Draft tokens verified, by the same.", ("sequences",))
TREE = Metric(
    "tree_seconds", "From asking for drafts to the tree's arrival, for those that were waited for.", (), WAIT_SECONDS
)

QUEUE_WAIT = Metric(
    "queue_wait_seconds",
    "How long work waited for a stage: start (a request for its verifier), draft, fuse, verify, settle (mail).",
    ("stage",),
    WAIT_SECONDS,
)
AUDITS = Metric("audit", "Requests replayed plainly, by result.", ("result",), values=("same", "differs", "skipped"))
BUSY = Metric("busy_seconds", "Time processes were at work, by kind.", ("kind",))

METRICS = {metric.name: metric for metric in globals().copy().values() if isinstance(metric, Metric)}
