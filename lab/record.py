"""`./paceline lab record`: have the target generate its texts and each model drafter guess after each token of them.

The recording also has what the target's steps and the drafters' guesses take. Simulations replay it.
"""

import argparse
import os
import sys
import time
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Listed
from itertools import accumulate
from operator import mul
from pathlib import Path

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.drafter import AnyGuesser
from app.assembly.local import Models, load_models
from app.drafter.draft_kv import DraftKV
from app.engine.drafters.guesser import ModelGuesser
from app.errors import PacelineError
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import BatchEntry, Guess
from bench.help import count
from bench.help import parser as parser_of
from bench.prompts import add_prompts_file
from bench.stats import median
from lab.beam import lines_of
from lab.plain_texts import States, generated
from lab.simulate.log import CHOICES, DEPTH, Branches, Chain, Chains, DrafterLog, Log, Text, choices_of

BATCHES = (1, 2, 4, 8, 16)  # sequences at once, for which drafting is timed
TIMED = 12  # calls for each
LEAST = 0.05  # the least chance of a choice behind which is guessed, and of a third one later in a chain
FLOOR = (
    0.01  # the least chance of a third choice behind a text's own tokens, and survival behind which a branch goes on
)
DIGITS = 4  # of a chance, behind the point


def main(argv: Listed[str] | None = None) -> int:
    args = parse_args(argv)
    # On a CPU a drafter returns whole chains, on a GPU one guess at a time.
    settings = Settings.from_env().model_copy(update={"draft_device": "cpu"})
    prompts = {domain: of_domain[: args.prompts] for domain, of_domain in args.texts.items()}
    try:
        log = record(settings, load_models(settings), prompts, args.max_tokens, args.times and Log.read(args.times))
    except (OSError, ValueError, PacelineError) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    log.write(args.log)
    print(f"{args.log}: {len(log.texts)} texts", *lines_of(log), sep="\n")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    parser = parser_of("lab record", __doc__)
    parser.add_argument("--prompts", type=count, default=8, help="of each domain")
    parser.add_argument("--max-tokens", type=count, default=64, help="tokens a text")
    parser.add_argument("--log", type=Path, default=Path("drafts.json.gz"), help="file to write")
    parser.add_argument("--times", type=Path, help="a recording of the same texts, whose times are kept")
    add_prompts_file(parser)
    return parser.parse_args(argv)


def record(
    settings: Settings,
    models: Models,
    prompts: Mapping[str, Listed[str]],
    max_tokens: int,
    times: Log | None = None,
) -> Log:
    """Record, with the times of an older recording if there is one. Raises ValueError if that has other texts."""
    texts, states = generated(settings, models, prompts, max_tokens=max_tokens)
    if times is not None:
        check_alike(texts, models.guessers, times)
    drafters = {name: _drafter(name, guesser, texts, states) for name, guesser in models.guessers.items()}
    log = Log(costs=models.costs, vocab_size=models.tokenizer.vocab_size, texts=tuple(texts), drafters=drafters)
    return log if times is None else with_times(log, times)


def _drafter(name: str, guesser: AnyGuesser, texts: Listed[Text], states: States) -> DrafterLog:
    if not isinstance(guesser, ModelGuesser):
        raise TypeError("recordings are made on a CPU")
    draft_kv = DraftKV(name, guesser, guesser.max_context)
    read_s = _reading(draft_kv, texts)
    guesses, branches = _guesses(DraftKV(name, _Wide(guesser), guesser.max_context), texts, states)
    token_s = {batch: _token_s(draft_kv, texts[:batch], states) for batch in BATCHES if batch <= len(texts)}
    for i in range(len(texts)):
        draft_kv.remove(str(i))
    return DrafterLog(guesses=guesses, branches=branches, token_s=token_s, read_s=read_s)


class _Wide:
    """A drafter's model that guesses one token a call, with CHOICES choices."""

    def __init__(self, own: ModelGuesser) -> None:
        self._own = own
        self.try_reserve, self.release, self.fork = own.try_reserve, own.release, own.fork
        self.cover, self.invalidate = own.cover, own.invalidate

    def guess(self, works: list[BatchEntry], depth: int, floor: float) -> list[list[Guess]]:
        return self._own.guess_one(works, CHOICES)


def _guesses(draft_kv: DraftKV, texts: Listed[Text], states: States) -> tuple[Chains, Branches]:
    """Guess in all texts at once, which is faster; return guesses[text][i] and branches[text][i][n]."""
    found: list[list[Chain]] = [[()] for _ in texts]  # no drafter guesses before the first token
    branches: list[list[tuple[Chain, ...]]] = [[()] for _ in texts]
    for at in range(1, max(len(text.tokens) for text in texts)):
        contexts = {
            str(i): _context(i, text, at, states[i][at]) for i, text in enumerate(texts) if at < len(text.tokens)
        }
        chains = _behind(draft_kv, contexts, dict.fromkeys(contexts, ()), DEPTH)
        others = {own: [choice for choice in choices_of(chains[own][0])[1:] if choice[1] >= LEAST] for own in chains}
        behind: dict[str, list[Chain]] = {own: [] for own in contexts}
        for n in range(CHOICES - 1):
            starts = {own: (choices[n][0],) for own, choices in others.items() if n < len(choices)}
            for own, chain in _behind(draft_kv, contexts, starts, DEPTH - 1).items():
                behind[own].append(_likely(chain, others[own][n][1]))
        for own in contexts:
            found[int(own)].append(chains[own])
            branches[int(own)].append(tuple(behind[own]))
    return tuple(map(tuple, found)), tuple(map(tuple, branches))


def _behind(
    draft_kv: DraftKV, contexts: Mapping[str, Context], starts: Mapping[str, tuple[int, ...]], depth: int
) -> dict[str, Chain]:
    """Return chains behind these tokens, which stand behind the contexts."""
    found: dict[str, list[Guess]] = {own: [] for own in starts}
    for own, tokens in starts.items():
        draft_kv.align(contexts[own], [*contexts[own].tokens, *tokens])
    for _ in range(depth if starts else 0):
        for own, (guess,) in draft_kv.guess([*starts], 1, 0.0).items():
            found[own].append(_short(guess, LEAST if starts[own] or found[own] else FLOOR))
            draft_kv.advance(own, [guess.token])
    return {own: tuple(chain) for own, chain in found.items()}


def _short(guess: Guess, least: float) -> Guess:
    """Keep the first two choices and likelier others, with few digits: a recording is to be small."""
    first, second, *further = [(token, round(chance, DIGITS)) for token, chance in choices_of(guess)]
    return Guess(*first, *second, tuple(choice for choice in further if choice[1] >= least))


def _likely(branch: Chain, survival: float) -> Chain:
    """Keep a branch as far as it survives with a chance of FLOOR; `survival`: of what is before it."""
    before = accumulate((guess.confidence for guess in branch), mul, initial=survival)
    return tuple(guess for guess, chance in zip(branch, before, strict=False) if chance >= FLOOR)


def check_alike(texts: Listed[Text], drafters: Collection[str], times: Log) -> None:
    """Raise ValueError if a recording has other texts or lacks one of the drafters."""
    if tuple(texts) != times.texts:
        raise ValueError("--times: that recording has other texts than the target generates")
    if lacking := [name for name in drafters if name not in times.drafters]:
        raise ValueError(f"--times: that recording has no drafter {lacking[0]}")


def with_times(log: Log, old: Log) -> Log:
    """Return a recording with the times of an older one."""
    drafters = {
        name: own.model_copy(update=old.drafters[name].model_dump(include={"token_s", "read_s", "context_s"}))
        for name, own in log.drafters.items()
    }
    return log.model_copy(update={"costs": old.costs, "drafters": drafters})


def _token_s(draft_kv: DraftKV, texts: Listed[Text], states: States) -> float:
    taken = []
    for at in range(2, 2 + TIMED):
        ids = [_align(draft_kv, i, text, states, min(at, len(text.tokens) - 1)) for i, text in enumerate(texts)]
        started = time.perf_counter()
        guessed = draft_kv.guess(ids, DEPTH, 0.0)
        taken.append((time.perf_counter() - started) / max(1, *map(len, guessed.values())))
    return median(taken)


def _reading(draft_kv: DraftKV, texts: Listed[Text]) -> float:
    """Return the seconds of reading one token of a prompt that is read whole."""
    taken = []
    for i, text in enumerate(texts[:TIMED]):
        draft_kv.align(_context(i, text, 0, None), [*text.prompt_ids])
        started = time.perf_counter()
        draft_kv.guess([str(i)], 1, 0.0)
        taken.append((time.perf_counter() - started) / len(text.prompt_ids))
    return median(taken)


def _align(draft_kv: DraftKV, i: int, text: Text, states: States, at: int) -> str:
    context = _context(i, text, at, states[i][at])
    draft_kv.align(context, context.tokens)
    return context.request_id


def _context(i: int, text: Text, at: int, state: bytes | None) -> Context:
    tokens = [*text.prompt_ids, *text.tokens[:at]]
    return Context(str(i), "public", tokens, len(text.prompt_ids), DEPTH, Sampling(seed=0), state=state)


if __name__ == "__main__":
    sys.exit(main())
