"""`./paceline lab record`: have the target generate its texts and each model drafter guess after each token of them.

The recording also has what the target's steps and the drafters' guesses take. Simulations replay it.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from pathlib import Path

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.drafter import AnyGuesser
from app.assembly.local import Models, build_local, load_models
from app.drafter.draft_kv import DraftKV
from app.request import GenerateRequest, Sampling, SpeculationBounds
from app.stages.draft.protocol import Context
from app.state import Guess
from bench.help import count
from bench.help import parser as parser_of
from bench.prompts import add_prompts_file
from bench.stats import median
from lab.simulate.log import DEPTH, DrafterLog, Log, Text

BATCHES = (1, 2, 4, 8, 16)  # sequences at once, for which drafting is timed
TIMED = 12  # calls for each


def main(argv: Listed[str] | None = None) -> int:
    """Record and write the file; return the exit status."""
    args = parse_args(argv)
    # On a CPU a drafter returns whole chains, on a GPU one guess at a time.
    settings = Settings.from_env().model_copy(update={"draft_device": "cpu"})
    prompts = {domain: of_domain[: args.prompts] for domain, of_domain in args.texts.items()}
    log = record(settings, load_models(settings), prompts, args.max_tokens)
    log.write(args.log)
    print(f"{args.log}: {len(log.texts)} texts")
    for name, drafter in log.drafters.items():
        shown = ", ".join(f"{domain} {part:.2f}" for domain, part in acceptance(log.texts, drafter).items())
        print(f"{name}: its first token is right in {shown}")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("lab record", __doc__)
    parser.add_argument("--prompts", type=count, default=8, help="of each domain")
    parser.add_argument("--max-tokens", type=count, default=64, help="tokens a text")
    parser.add_argument("--log", type=Path, default=Path("drafts.json.gz"), help="file to write")
    add_prompts_file(parser)
    return parser.parse_args(argv)


def acceptance(texts: Listed[Text], drafter: DrafterLog) -> dict[str, float]:
    """Return by domain how often a drafter's first token is right, over each position but the first."""
    counts: dict[str, list[int]] = {}
    for text, chains in zip(texts, drafter.guesses, strict=True):
        for token, chain in list(zip(text.tokens, chains, strict=True))[1:]:
            counts.setdefault(text.domain, []).append(int(bool(chain) and chain[0].token == token))
    return {domain: round(sum(own) / len(own), 3) for domain, own in counts.items()}


def record(settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int) -> Log:
    """Have the target generate its texts and every model drafter guess at them."""
    texts, states = _texts(settings, models, prompts, max_tokens)
    drafters = {name: _drafter(name, guesser, texts, states) for name, guesser in models.guessers.items()}
    return Log(costs=models.costs, vocab_size=models.tokenizer.vocab_size, texts=tuple(texts), drafters=drafters)


States = list[list[bytes | None]]  # [text][i]: the target's state where it chose the text's i-th token


def _texts(
    settings: Settings, models: Models, prompts: Mapping[str, Listed[str]], max_tokens: int
) -> tuple[list[Text], States]:
    pipeline = build_local(settings, models)
    sequences = pipeline.verifier.sequences
    asked = [(domain, prompt) for domain, of_domain in prompts.items() for prompt in of_domain]
    off = SpeculationBounds(enabled=False)
    requests = [GenerateRequest(prompt=prompt, max_tokens=max_tokens, speculation=off) for _, prompt in asked]
    records = [pipeline.submit(request, settings) for request in requests]
    seen: dict[str, dict[int, bytes | None]] = {record.id: {} for record in records}
    while sequences:
        pipeline.step()
        for request_id, sequence in sequences.items():
            seen[request_id][sequence.generated] = sequence.kv.state
    ends = [pipeline.store.snapshot(record.id) for record in records]
    texts = [
        Text(domain=domain, prompt_ids=end.record.prompt_ids, tokens=end.tokens)
        for (domain, _), end in zip(asked, ends, strict=True)
    ]
    states = [
        [seen[record.id].get(i) for i in range(len(text.tokens))] for record, text in zip(records, texts, strict=True)
    ]
    return texts, states


def _drafter(name: str, guesser: AnyGuesser, texts: Listed[Text], states: States) -> DrafterLog:
    draft_kv = DraftKV(name, guesser, guesser.max_context)
    read_s = _reading(draft_kv, texts)
    guesses = _guesses(draft_kv, texts, states)
    token_s = {batch: _token_s(draft_kv, texts[:batch], states) for batch in BATCHES if batch <= len(texts)}
    for i in range(len(texts)):
        draft_kv.remove(str(i))
    return DrafterLog(guesses=guesses, token_s=token_s, read_s=read_s)


def _guesses(draft_kv: DraftKV, texts: Listed[Text], states: States) -> tuple[tuple[tuple[Guess, ...], ...], ...]:
    """Guess in all texts at once, which is faster; return guesses[text][i]."""
    found: list[list[tuple[Guess, ...]]] = [[()] for _ in texts]  # no drafter guesses before the first token
    for at in range(1, max(len(text.tokens) for text in texts)):
        ids = [_align(draft_kv, i, text, states, at) for i, text in enumerate(texts) if at < len(text.tokens)]
        guessed = draft_kv.guess(ids, DEPTH, 0.0)
        for request_id in ids:
            found[int(request_id)].append(tuple(guessed.get(request_id, ())))
    return tuple(map(tuple, found))


def _token_s(draft_kv: DraftKV, texts: Listed[Text], states: States) -> float:
    """Return the seconds of one more guess for these texts at once, next to nothing unread."""
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
