"""`python bench/gpu/served.py --model FOLDER --out FILE`: a whole deployment on this device, beside other servers.

Starts a deployment of the model, and has it answer the benchmarks' prompts with speculation and without; servers that
run already (`--peer NAME=URL`, with OpenAI's API) answer the same prompts. Arms take turns block by block, so all meet
the same disturbances; a block's prompts are new to each. Rates are those of all requests of a block together.

With vLLM as the engine, and first the tests of that target (PYTHON is an environment's that has vLLM and pytest):

    export PACELINE_VLLM_PYTHON=PYTHON
    ./paceline test -m extended tests/app/engine/vllm -k whole
    PACELINE_ENGINE=vllm python bench/gpu/served.py --model FOLDER --peer vllm=URL --out FILE
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    sys.path[0] = str(ROOT)

from bench.prompts import PROMPTS  # noqa: E402  (where the package lies is known from here on)
from bench.stats import median, paired_ratio  # noqa: E402

Figures = dict[str, Any]
Arm = tuple[str, Figures]  # a server and the fields of its requests
REQUESTS = {1: 6, 8: 32, 32: 96}  # of a block, by streams
ANSWER_S = 120.0


def main() -> int:
    """Measure all arms, print and write the figures; return the exit status."""
    args = parse_args()
    figures: Figures = {"model": args.model.name, "max_tokens": args.max_tokens, "streams": {}}
    started = time.perf_counter()
    up = paceline("up", str(args.model), "-d", "--port", str(args.port), "--instance", args.instance)
    figures["up_s"] = round(time.perf_counter() - started, 1)
    print("up", up.returncode, figures["up_s"], up.stdout[-800:], up.stderr[-1500:], flush=True)
    try:
        if up.returncode:
            return 1
        own = f"http://127.0.0.1:{args.port}"
        arms: dict[str, Arm] = {
            name: (own, {"speculation": is_on}) for name, is_on in (("paceline", True), ("paceline, off", False))
        }
        arms |= {name: (url, {"cache_prompt": False}) for name, url in args.peer}
        arms = {name: (url, {"model": model_of(url), **fields}) for name, (url, fields) in arms.items()}
        texts = [text for group in zip(*PROMPTS.values(), strict=True) for text in group]
        for arm in arms.values():  # whatever compiles, compiles now
            asked(arm, texts[:8], 8, 32)
        for streams in args.streams:
            figures["streams"][streams] = compared(arms, texts, streams, args)
            args.out.write_text(json.dumps(figures, indent=1) + "\n")
        print(paceline("status", "--instance", args.instance).stdout[-2500:], flush=True)
    finally:
        print(paceline("down", "--instance", args.instance).stdout[-200:])
    return 0


def compared(arms: dict[str, Arm], texts: list[str], streams: int, args: argparse.Namespace) -> Figures:
    """Let the arms answer each block of prompts in turn; return rates, and their quotients to plain decoding."""
    prompts = cycle(texts)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    waits: dict[str, list[float]] = {name: [] for name in arms}
    drafted = accepted = same = count = 0
    for block in range(args.blocks):
        size = REQUESTS.get(streams, 3 * streams)
        asks = [f"{text} (Version {block}.{i // len(texts)})" for i, text in enumerate(islice(prompts, size))]
        answers = {}
        order = list(arms)[block % len(arms) :] + list(arms)[: block % len(arms)]
        for name in order:
            took, answers[name] = asked(arms[name], asks, streams, args.max_tokens)
            rates[name].append(sum(one["usage"]["completion_tokens"] for one in answers[name]) / took)
            waits[name] += [one["took_s"] / max(1, one["usage"]["completion_tokens"]) for one in answers[name]]
        on, off = answers["paceline"], answers["paceline, off"]
        rounds = [one["metrics"]["speculative_decoding"] for one in on if "metrics" in one]
        drafted += sum(one["num_draft_tokens"] for one in rounds)
        accepted += sum(one["num_accepted_draft_tokens"] for one in rounds)
        same += sum(a["choices"][0]["message"] == b["choices"][0]["message"] for a, b in zip(on, off, strict=True))
        count += len(on)
    found: Figures = {
        "tokens_s": {name: round(median(each)) for name, each in rates.items()},
        "ms_a_token": {name: round(1e3 * median(each), 2) for name, each in waits.items()},
        "blocks": {name: [round(rate) for rate in each] for name, each in rates.items()},
        "over plain": {name: round(paired_ratio(each, rates["paceline, off"]).mean, 3) for name, each in rates.items()},
        "drafted": drafted,
        "accepted": accepted,
        "same_texts": f"{same} of {count}",
    }
    print(streams, json.dumps(found), flush=True)
    return found


def asked(arm: Arm, texts: list[str], streams: int, max_tokens: int) -> tuple[float, list[Figures]]:
    """Have all prompts answered, `streams` at once; return the seconds and the answers."""
    url, fields = arm

    def ask(text: str) -> Figures:
        started = time.perf_counter()
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens,
                "temperature": 0, **fields}  # fmt: skip
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: Figures = json.load(answer)
        return found | {"took_s": time.perf_counter() - started}

    started = time.perf_counter()
    with ThreadPoolExecutor(streams) as threads:
        answers = list(threads.map(ask, texts))
    return time.perf_counter() - started, answers


def model_of(url: str) -> str:
    """Return the name of the model that a server has."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=ANSWER_S) as answer:
        return str(json.load(answer)["data"][0]["id"])


def paceline(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this tree."""
    return subprocess.run([ROOT / "paceline", *words], capture_output=True, text=True, check=False)


def parse_args() -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--peer", type=_named, action="append", default=[], metavar="NAME=URL", help="a server")
    parser.add_argument("--streams", type=int, nargs="+", default=[*REQUESTS], help="requests at once")
    parser.add_argument("--blocks", type=int, default=3, help="of prompts, at each number of streams")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens a request")
    parser.add_argument("--port", type=int, default=8490)
    parser.add_argument("--instance", default="served")
    return parser.parse_args()


def _named(text: str) -> tuple[str, str]:
    name, _, url = text.rpartition("=")
    return name, url.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
