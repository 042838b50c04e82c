"""`./paceline bench rounding`: what rounded weights or activations change in what the target says next.

Reads the same text with each arithmetic and compares with float32: perplexity, the share of positions whose likeliest
token is the same, and the mean divergence (KL) of the next token's distribution. `--llama-python` names a Python with
llama_cpp, which reads the same tokens from the target's own file.
"""

import json
import subprocess
import sys
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.config import ROOT, Activations, Settings, WeightsAs
from app.engine.cpu.forward import Forward
from app.engine.cpu.load import load
from app.engine.kv.pages import KVCache, PagePool
from app.engine.packing import plan
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import GGUF, target_folder
from app.state import BatchEntry, CachedSequence, Tree
from bench.help import parser as parser_of
from bench.report_header import add_out, heading, write_report

TEXTS = ("docs/architecture.md", "docs/papers.md", "docs/operations.md", "app/pipeline.py", "app/verifier/verifier.py")
CONTEXT = 512  # tokens read at once; the first of each is given
PAGE_TOKENS = 16
ARMS: dict[str, tuple[WeightsAs, Activations]] = {
    "float32": ("stored", "float32"),
    "int8 activations": ("stored", "int8"),
    "weights Q8_0": ("q8_0", "float32"),
    "weights Q8_0, int8 activations": ("q8_0", "int8"),
    "weights Q4_0": ("q4_0", "float32"),
}


def main(argv: Listed[str] | None = None) -> int:
    """Measure, print and write the figures; return the exit status."""
    parser = parser_of("bench rounding", __doc__)
    parser.add_argument("--tokens", type=int, default=8 * CONTEXT, help="tokens of text, at most")
    parser.add_argument("--llama-python", help="a Python that has llama_cpp")
    add_out(parser, "rounding")
    args = parser.parse_args(argv)
    settings = Settings.from_env()
    folder = target_folder(settings)
    torch.set_num_threads(settings.verify_threads)
    ids = [token for text in TEXTS for token in Tokenizer(folder).encode((ROOT / text).read_text())]
    pieces = [ids[i : i + CONTEXT] for i in range(0, min(len(ids), args.tokens), CONTEXT)]
    exact = logprobs(load(folder), pieces)
    figures = {}
    for name, (weights, activations) in ARMS.items():
        found = exact if name == "float32" else logprobs(load(folder, weights, None, activations), pieces)
        figures[name] = compare(found, exact, pieces)
        print(name, figures[name], flush=True)
    if args.llama_python:
        figures["llama.cpp"] = compare(of_llama(args.llama_python, folder / GGUF, pieces), exact, pieces)
        print("llama.cpp", figures["llama.cpp"], flush=True)
    about = {"tokens": sum(map(len, pieces)), "texts": TEXTS, "arms": figures}
    write_report(args.out, {**heading("bench rounding", argv), **about})
    return 0


@torch.inference_mode()
def logprobs(forward: Forward, pieces: list[list[int]]) -> list[np.ndarray]:
    """Return the log-probabilities (T, V) float32 after each token of each piece."""
    found = []
    for ids in pieces:
        pages = -(-len(ids) // PAGE_TOKENS)
        shape = forward.shape
        kv = KVCache(shape.num_layers, pages, shape.num_key_heads, shape.head_dim, PAGE_TOKENS)
        sequence = CachedSequence("text", ids)
        PagePool(pages, PAGE_TOKENS).try_grow(sequence.pages, len(ids))
        whole = plan([BatchEntry(sequence, 0, ids, Tree(), final=False)], kv)
        whole.wanted = list(range(len(ids)))
        found.append(forward.logits(whole).logits.log_softmax(-1).numpy())
    return found


def of_llama(python: str, file: Path, pieces: list[list[int]]) -> list[np.ndarray]:
    """Return llama.cpp's log-probabilities, as `logprobs` does."""
    script = Path(__file__).parent / "peers" / "score_llama.py"
    out = ROOT / "bench" / "results" / ".llama-logits.npy"
    try:
        subprocess.run([python, script, file, out], input=json.dumps(pieces), text=True, check=True)
        logits = np.load(out)
    finally:
        out.unlink(missing_ok=True)
    ends = np.cumsum([len(ids) for ids in pieces])
    return [torch.from_numpy(part).log_softmax(-1).numpy() for part in np.split(logits, ends[:-1])]


def compare(found: list[np.ndarray], exact: list[np.ndarray], pieces: list[list[int]]) -> dict[str, Any]:
    """Return the perplexity, and how far the distributions are from the exact ones."""
    nll = [-part[np.arange(len(ids) - 1), ids[1:]] for part, ids in zip(found, pieces, strict=True)]
    same = [(a.argmax(-1) == b.argmax(-1)) for a, b in zip(found, exact, strict=True)]
    kl = [(np.exp(b) * (b - a)).sum(-1) for a, b in zip(found, exact, strict=True)]
    return {
        "perplexity": round(float(np.exp(np.concatenate(nll).mean())), 3),
        "same likeliest token": round(float(np.concatenate(same).mean()), 4),
        "mean KL": round(float(np.concatenate(kl).mean()), 5),
    }


if __name__ == "__main__":
    sys.exit(main())
