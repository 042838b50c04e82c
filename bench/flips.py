"""`./paceline bench flips`: how often vLLM's greedy token changes with the rows beside it.

Texts of one row a step are the reference; along them, each arm computes the same places in
steps of more rows. A place whose token is another one is a flip. Exact serving needs none.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Any

from app.config import THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.engine.text.tokenizer import Tokenizer
from app.engine.vllm.load import load_target
from app.engine.weights.resolve import target_folder
from app.local.process_specs import interpreter
from app.local.vllm_environment import vllm_python
from app.request import Sampling
from app.state import CHAIN, BatchEntry, CachedSequence, Tree
from bench.help import parser as parser_of
from bench.prompts import PROMPTS
from bench.report_header import add_out, heading, write_report

ARMS = {"alone": (1, 0), "alone, 3 drafts": (1, 3), "alone, 8 drafts": (1, 8)}
ARMS |= {"8 at once": (8, 0), "8 at once, 3 drafts": (8, 3), "8 at once, 8 drafts": (8, 8)}


@dataclass
class Text:
    """One text along its reference, which every place is followed by, whatever was chosen there."""

    sequence: CachedSequence
    prompt: int
    reference: list[int] = field(default_factory=list)
    flips: int = 0

    @property
    def place(self) -> int:
        return len(self.sequence.tokens) - self.prompt


def main(argv: Listed[str] | None = None) -> int:
    parser = parser_of("bench flips", __doc__)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="of vLLM's weights"
    )
    parser.add_argument("--texts", type=int, default=16, help="prompts")
    parser.add_argument("--tokens", type=int, default=64, help="places of each text")
    add_out(parser, "flips")
    args = parser.parse_args(argv)
    if importlib.util.find_spec("vllm") is None:
        return _in_vllms_environment(argv)
    folder = target_folder(Settings.from_env())
    tokenizer = Tokenizer(folder)
    target = load_target(
        folder,
        dtype=args.dtype,
        kv_bytes=lambda longest_bytes: 16 * longest_bytes,
        longest_tokens=512,
        max_sequences=8,
        batch_tokens=1024,
        shares=False,
    )
    prompts = [prompt for group in zip(*PROMPTS.values(), strict=True) for prompt in group][: args.texts]
    ids = [list(tokenizer.encode(prompt)) for prompt in prompts]
    references = [list(_plain(target, f"reference {i}", one, args.tokens)) for i, one in enumerate(ids)]
    arms = {}
    for name, (at_once, drafts) in ARMS.items():
        texts = [
            Text(CachedSequence(f"{name} {i}", [*one], Sampling(temperature=0.0)), len(one), reference)
            for i, (one, reference) in enumerate(zip(ids, references, strict=True))
        ]
        for begin in range(0, len(texts), at_once):
            _run(target, texts[begin : begin + at_once], drafts)
        flips = sum(text.flips for text in texts)
        places = sum(len(text.reference) for text in texts)
        changed = sum(text.flips > 0 for text in texts)
        arms[name] = {
            "flips a thousand": round(1000 * flips / places, 1),
            "texts changed": f"{changed} of {len(texts)}",
        }
        print(name, arms[name], flush=True)
    about = {"model": Settings.from_env().model, "dtype": args.dtype, "places": places, "arms": arms}
    write_report(args.out, {**heading("bench flips", argv), **about})
    target.close()
    return 0


def _in_vllms_environment(argv: Listed[str] | None) -> int:
    settings = Settings.from_env()
    made = settings.vllm_python or vllm_python(settings.home, print)
    python, more = interpreter("verify", settings.changed(engine="vllm", vllm_python=made))
    words = sys.argv[1:] if argv is None else argv
    return subprocess.run([python, "-m", "bench.flips", *words], env={**os.environ, **more}, check=False).returncode


def _plain(target: Any, name: str, prompt: list[int], count: int) -> Iterator[int]:
    sequence = CachedSequence(name, [*prompt], Sampling(temperature=0.0))
    for _ in range(count):
        (token,) = _step(target, [(sequence, [])])[0]
        sequence.tokens.append(token)
        yield token
    target.release(sequence)


def _run(target: Any, texts: list[Text], drafts: int) -> None:
    """Go along the references, all texts in each step until the shortest has ended."""
    left = list(texts)
    while left:
        works = [(text.sequence, text.reference[text.place : text.place + drafts]) for text in left]
        for text, walked in zip(left, _step(target, works), strict=True):
            place = text.place
            right = text.reference[place : place + len(walked)]
            walked = walked[: len(right)]
            text.flips += walked[-1] != right[-1]  # the walk ends at the first token that is not its draft
            text.sequence.tokens += right
            if walked != right:
                target.release(text.sequence)  # vLLM has the other token: the text is read again
        for text in left:
            if text.place >= len(text.reference):
                target.release(text.sequence)
        left = [text for text in left if text.place < len(text.reference)]


def _step(target: Any, works: list[tuple[CachedSequence, list[int]]]) -> list[list[int]]:
    """Compute a step; return the tokens chosen for each sequence, one more than drafts that were right."""
    entries = []
    for sequence, drafts in works:
        tree = Tree(drafts, CHAIN[: len(drafts)], [1.0] * len(drafts), [("bench",)] * len(drafts))
        start = sequence.cached
        entries.append(BatchEntry(sequence, start, sequence.tokens[start:], tree, final=True))
        target.try_reserve(entries[-1])
    found = []
    for entry, rows in zip(entries, target.forward(entries), strict=True):
        drafts = [token for node, token in enumerate(entry.tree.tokens, start=1) if node not in entry.pruned]
        walked = [rows.token(0, 0, entry.sequence.sampling, ())]
        while len(walked) <= len(drafts) and walked[-1] == drafts[len(walked) - 1]:
            walked.append(rows.token(len(walked), 0, entry.sequence.sampling, ()))
        target.accept(entry, [*range(1, len(walked))])
        found.append(walked)
    return found


if __name__ == "__main__":
    sys.exit(main())
