"""Measure a target's step costs on a GPU, with contexts read side by side."""

from collections.abc import Callable, Mapping

from app.engine.cpu.equivalence import probe
from app.engine.profile.profiler import CONTEXT, PASSES, ROWS, ProfiledTarget, step_seconds, verified
from app.engine.step_costs import Reading, StepCosts
from app.state import BatchEntry, CachedSequence, Tree

MANY = 16  # sequences of a step whose contexts are read side by side
MANY_ROWS = (64, 96, 128, 192, 256, 384, 512)  # of MANY sequences: a tree has no more than 64
CHUNK = 2048  # tokens of the widest chunk of a prompt, fewer where fewer fit
CONTEXTS = (4096, 16384)  # cached tokens; the longest that fits where these do not


def measure_gpu_costs(runner: ProfiledTarget, vocab_size: int, longest_tokens: int) -> StepCosts:
    """Contexts are reserved, not computed: reading time does not depend on content."""
    steps = _Steps(runner, vocab_size, min(longest_tokens, runner.capacity_tokens))
    one = steps.time({context: steps.decoding(1, context) for context in steps.contexts(1, 1)})
    many = steps.time({context: steps.decoding(MANY, context) for context in steps.contexts(MANY, 1)})
    width = min(CHUNK, steps.longest // 2)
    wide = steps.time({context: steps.chunk(width, context) for context in (0, *steps.contexts(1, width))})
    reading = _reading(_slope(one), _slope(many), _slope(wide), width)

    seconds = steps.time({rows: steps.decoding(1, CONTEXT, rows) for rows in ROWS if CONTEXT + rows <= steps.longest})
    points = {rows: _bare(took_s, reading.seconds(CONTEXT, rows)) for rows, took_s in seconds.items()}
    fitting = [rows for rows in MANY_ROWS if steps.fits(MANY, CONTEXT + rows // MANY)]
    seconds = steps.time({rows: steps.decoding(MANY, CONTEXT, rows // MANY) for rows in fitting})
    for rows, took_s in seconds.items():
        points[rows] = _bare(took_s, reading.step_s([(CONTEXT, rows // MANY)] * MANY))
    if width > max(points):
        points[width] = wide[0]
    return StepCosts(points, reading=reading)


class _Steps:
    def __init__(self, runner: ProfiledTarget, vocab_size: int, longest: int) -> None:
        self._runner, self._vocab_size, self.longest = runner, vocab_size, longest

    def fits(self, sequences: int, tokens: int) -> bool:
        page_slack = 128  # a sequence's last page, of any size
        held = sequences * (tokens + page_slack) if sequences > 1 else tokens
        return tokens <= self.longest and held <= self._runner.capacity_tokens

    def contexts(self, sequences: int, rows: int) -> tuple[int, ...]:
        fitting = [context for context in CONTEXTS if self.fits(sequences, context + rows)]
        if not fitting:
            longest = max((n for n in range(2 * CONTEXT, CONTEXTS[0], 64) if self.fits(sequences, n + rows)), default=0)
            fitting = [longest] if longest else []
        return (CONTEXT, *fitting) if self.fits(sequences, CONTEXT + rows) else ()

    def decoding(self, sequences: int, context: int, rows: int = 1) -> Callable[[], float]:
        return lambda: self._run(
            [verified(self._probe(context + rows), context, rows - 1) for _ in range(sequences)],
        )

    def chunk(self, rows: int, context: int) -> Callable[[], float]:

        def run() -> float:
            sequence = self._probe(context + rows)
            return self._run([BatchEntry(sequence, context, sequence.tokens[context:], Tree(), final=True)])

        return run

    def time(self, steps: Mapping[int, Callable[[], float]]) -> dict[int, float]:
        """Return each step's best seconds over several passes."""
        found = dict.fromkeys(steps, float("inf"))
        for _ in range(PASSES):
            for key, run in steps.items():
                found[key] = min(found[key], run())
        return found

    def _probe(self, tokens: int) -> CachedSequence:
        return probe(tokens, self._vocab_size)

    def _run(self, works: list[BatchEntry]) -> float:
        took_s = step_seconds(self._runner, works)
        for work in works:
            self._runner.release(work.sequence)
        return took_s


def _slope(seconds: Mapping[int, float]) -> float | None:
    if len(seconds) < 2:
        return None
    shortest = min(seconds)
    added = [(context - shortest, took_s - seconds[shortest]) for context, took_s in seconds.items()]
    return max(0.0, sum(n * s for n, s in added) / sum(n * n for n, _ in added))


def _reading(one: float | None, many: float | None, wide: float | None, width: int) -> Reading:
    if one is None:
        return Reading()
    row_token_s = max(0.0, (wide - one) / (width - 1)) if wide is not None else 0.0
    row_token_s = min(row_token_s, one)
    token_s = one - row_token_s
    if many is None or token_s <= 0.0:
        return Reading(token_s, row_token_s)
    share = (many / MANY - row_token_s) / token_s
    return Reading(token_s, row_token_s, min(1.0, max(1.0 / MANY, share)))


def _bare(took_s: float, reading_s: float) -> float:
    return max(took_s / 2, took_s - reading_s)
