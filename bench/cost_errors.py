"""`./paceline bench costs`: how far the expected costs of steps and drafts are off, held out.

Times steps of the target at sizes that its profile has not measured. Of each model drafter it times drafts of some
sizes, teaches the verifier's estimate with them, and times others. A point's error is |measured - expected| / measured,
of a median. All points may be off by one factor, the machine's pace, which a verifier follows: the mean error without
that factor stands beside the mean.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import product
from statistics import fmean, median
from typing import Any

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.local import load_models
from app.engine.cpu.equivalence import probe
from app.engine.drafters.guesser import ModelGuesser
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.sizing import PAGE_TOKENS
from app.engine.profile.profiler import CONTEXT, ProfiledTarget, step_seconds, verified
from app.engine.step_costs import StepCosts
from app.messages import DraftReport
from app.speculation.draft_costs import DraftCosts
from app.state import BatchEntry, CachedSequence, Tree
from bench.help import parser as parser_of
from bench.report_header import add_out, heading, write_report

TAUGHT = ((1, 2, 4, 8), (1, 4, 8))  # batches and lengths of the drafts that the estimate learns from
HELD_OUT = ((1, 3, 6), (2, 3, 6))  # and of those that it is judged by


@dataclass(frozen=True, slots=True)
class Point:
    """A step or a draft: where it stands on each axis, and the seconds that it took and was expected to take."""

    axes: Mapping[str, int]
    measured_s: float
    expected_s: float

    def error(self, pace: float = 1.0) -> float:
        """Return |measured - expected| / measured, where all is expected to take `pace` times as long."""
        return abs(self.measured_s - pace * self.expected_s) / self.measured_s


def main(argv: Listed[str] | None = None) -> int:
    """Measure, print, and write the figures; return the exit status."""
    args = parse_args(argv)
    settings = Settings.from_env()
    models = load_models(settings)
    costs = StepCosts.loads(models.costs)
    assert isinstance(models.runner, PagedRunner), "vLLM's requests cannot compute a row twice"
    steps = step_points(models.runner, costs, models.tokenizer.vocab_size, models.tokenizer.context_tokens, args)
    found: dict[str, Any] = {**heading("bench costs", argv), "model": settings.model_name, "steps": figures(steps)}
    print("steps", json.dumps(found["steps"], indent=1), flush=True)
    found["drafts"] = {}
    for name, guesser in models.guessers.items():
        if isinstance(guesser, ModelGuesser):  # a GPU's drafts with one call a token, and are timed by `bench gpu`
            found["drafts"][name] = figures(draft_points(guesser, guesser.model.vocab_size, args.passes))
            print("drafts of", name, json.dumps(found["drafts"][name], indent=1), flush=True)
    write_report(args.out, found)
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench costs", __doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 3, 6], help="of a step")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5, 9], help="of each sequence in a step")
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 1000], help="cached tokens of each sequence")
    parser.add_argument("--passes", type=int, default=7, help="times that each point is measured; the median counts")
    add_out(parser, "costs")
    args = parser.parse_args(argv)
    if min(*args.sequences, *args.rows, *args.contexts, args.passes) < 1:
        parser.error("sequences, rows, contexts and passes are at least 1")
    if CONTEXT in args.contexts:
        parser.error(f"steps over {CONTEXT} cached tokens are what the profile has measured: another context")
    return args


def step_points(
    runner: ProfiledTarget, costs: StepCosts, vocab_size: int, context_tokens: int, args: argparse.Namespace
) -> list[Point]:
    """Time steps at every point that fits; contexts are reserved and not computed, as in the profile."""
    wanted = [*product(args.sequences, args.rows, args.contexts)]
    fitting = [
        (sequences, rows, context)
        for sequences, rows, context in wanted
        if context + rows <= context_tokens
        and sequences * (context + rows + PAGE_TOKENS) <= min(runner.free_tokens, runner.capacity_tokens)
    ]
    taken: dict[tuple[int, int, int], list[float]] = {point: [] for point in fitting}
    for _ in range(args.passes):  # pass by pass, so that a disturbance is not all of one point
        for sequences, rows, context in fitting:
            works = [verified(probe(context + rows, vocab_size), context, rows - 1) for _ in range(sequences)]
            taken[sequences, rows, context].append(step_seconds(runner, works))
            for work in works:
                runner.release(work.sequence)
    return [
        Point(
            {"sequences": sequences, "rows": rows, "context": context},
            median(seconds),
            costs.seconds(sequences * rows) + costs.reading.step_s([(context, rows)] * sequences),
        )
        for (sequences, rows, context), seconds in taken.items()
    ]


def draft_points(guesser: ModelGuesser, vocab_size: int, passes: int) -> list[Point]:
    """Time drafts, teach an estimate with TAUGHT, and return HELD_OUT beside what it expects."""
    taught, held_out = (product(*axes) for axes in (TAUGHT, HELD_OUT))
    most = max(*TAUGHT[0], *HELD_OUT[0])
    sequences = [probe(CONTEXT + 1, vocab_size) for _ in range(most)]
    for sequence in sequences:
        work = BatchEntry(sequence, 0, sequence.tokens[:CONTEXT], Tree(), final=True)
        guesser.try_reserve(work, 1)
        guesser.guess([work], 1, 0.0)
        guesser.cover(sequence, CONTEXT)
    estimate = DraftCosts()
    for (batch, depth), seconds in _drafting(guesser, sequences, [*taught], passes).items():
        for one in seconds:
            estimate.update(batch, depth, one, [DraftReport(guess_s=one, guessed=depth)])
    measured = _drafting(guesser, sequences, [*held_out], passes)
    for sequence in sequences:
        guesser.release(sequence)
    return [
        Point({"batch": batch, "length": depth}, median(seconds), estimate.guess_s(batch, depth))
        for (batch, depth), seconds in measured.items()
    ]


def _drafting(
    guesser: ModelGuesser, sequences: list[CachedSequence], points: list[tuple[int, int]], passes: int
) -> dict[tuple[int, int], list[float]]:
    """Return the seconds of drafts at each (batch, length), one a pass; one token of a sequence is unread."""
    taken: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for _ in range(passes):
        for batch, depth in points:
            works = [BatchEntry(s, CONTEXT, s.tokens[CONTEXT:], Tree(), final=True) for s in sequences[:batch]]
            for work in works:
                guesser.try_reserve(work, depth)
            began_s = time.perf_counter()
            guesser.guess(works, depth, 0.0)
            taken[batch, depth].append(time.perf_counter() - began_s)
            for work in works:
                guesser.cover(work.sequence, CONTEXT)
    return taken


def figures(points: Listed[Point]) -> dict[str, Any]:
    """Return every point, the mean of their errors, and that by each axis; `pace`: measured / expected, a median."""
    if not points:
        return {"points": []}
    pace = median(point.measured_s / point.expected_s for point in points)
    by_axis = {
        axis: {
            str(at): round(fmean(point.error() for point in points if point.axes[axis] == at), 4)
            for at in sorted({point.axes[axis] for point in points})
        }
        for axis in points[0].axes
    }
    return {
        "mean_error": round(fmean(point.error() for point in points), 4),
        "pace": round(pace, 4),
        "mean_error_at_that_pace": round(fmean(point.error(pace) for point in points), 4),
        "mean_error_by": by_axis,
        "points": [
            {
                **point.axes,
                "measured_ms": round(1e3 * point.measured_s, 4),
                "expected_ms": round(1e3 * point.expected_s, 4),
                "error": round(point.error(), 4),
            }
            for point in points
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
