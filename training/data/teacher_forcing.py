"""Let the target read text that it has not written, cut in windows; its own choices are the labels."""

import hashlib
import random
from pathlib import Path

import numpy as np

from app.engine.cpu.forward import Forward
from app.engine.kv.pages import KVCache, PagePool
from app.engine.packing import plan
from app.engine.text.tokenizer import Tokenizer
from app.errors import InvalidRequest
from app.state import BatchEntry, CachedSequence, Tree
from training.data.rows import RowFile
from training.progress_bar import Report

WINDOW = 192  # tokens
READ_FIRST = 16  # of them, without labels: the target knows too little yet
SHORTEST = 48
MOST_BYTES = 2**20  # of a file: larger ones are tables rather than text
PAGE_TOKENS = 128
CODE = {".py", ".pyi", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".go", ".rs", ".sh", ".sql", ".css"}
TEXT = {".txt", ".md", ".rst", ".html", ".xml", ".tex", ""}


def windows(path: Path, domain: str, tokenizer: Tokenizer, most: int, seed: int) -> list[list[int]]:
    """Cut a file, or the files of the domain's kind below a folder, into windows of token ids.

    If there are more than `most`, a sample of them, the same for the same seed. Raises InvalidRequest.
    """
    if not path.exists():
        raise InvalidRequest("text", f"there is no {path}")
    found = [window for file in _files(path, domain) for window in _cut(file, tokenizer)]
    if not found:
        raise InvalidRequest("text", f"{path} holds no text of {SHORTEST} tokens")
    draw = random.Random(seed)
    return found if len(found) <= most else [found[i] for i in sorted(draw.sample(range(len(found)), most))]


def domain_of(path: Path) -> str:
    """Decide whether a file, or most files of a folder, are code or prose, by their suffixes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    code = sum(file.suffix in CODE for file in files)
    return "code" if 2 * code > sum(file.suffix in CODE | TEXT for file in files) else "prose"


def read_windows(found: list[list[int]], domain: str, model: Forward, to: RowFile) -> None:
    """Append a row for every window that the file lacks."""
    keys = [hashlib.sha256(f"{domain}\n{window}".encode()).hexdigest()[:16] for window in found]
    todo = {key: window for key, window in zip(keys, found, strict=True) if key not in to.done}
    report = Report("reading text", len(set(keys)), len(set(keys)) - len(todo))
    reader = Reader(model)
    for key, window in todo.items():
        labels, states = reader.read(window[:-1])
        prompt, continuation = window[:READ_FIRST], window[READ_FIRST:]
        to.append(key, domain, prompt, continuation, states, is_greedy=False, labels=labels[READ_FIRST - 1 :])
        report.advance(domain)


class Reader:
    """Read one short text after the other with a model."""

    def __init__(self, model: Forward) -> None:
        pages = -(-WINDOW // PAGE_TOKENS)
        self._model = model
        self._pool = PagePool(pages, PAGE_TOKENS)
        self._kv = KVCache(model.shape.num_layers, pages, *model.shape[1:], PAGE_TOKENS)

    def read(self, tokens: list[int]) -> tuple[list[int], np.ndarray | None]:
        """Return the model's greedy choice after each of T tokens, and its last normed hidden states.

        The states are (T, d) float16, or None for a model whose hidden states cannot be read.
        """
        sequence = CachedSequence("text", tokens)
        self._pool.try_grow(sequence.pages, len(tokens))
        rows = plan([BatchEntry(sequence, 0, tokens, Tree(), final=True)], self._kv)
        rows.wanted = list(range(len(tokens)))
        _, best, states = self._model.logits(rows)
        self._pool.release(sequence.pages)
        return best, None if states is None else states.astype("f2")


def _files(path: Path, domain: str) -> list[Path]:
    if path.is_file():
        return [path]
    kinds = CODE if domain == "code" else TEXT
    return sorted(f for f in path.rglob("*") if f.is_file() and f.suffix in kinds and f.stat().st_size <= MOST_BYTES)


def _cut(file: Path, tokenizer: Tokenizer) -> list[list[int]]:
    try:
        ids = tokenizer.encode(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, OSError):
        return []  # no text
    cut = [ids[i : i + WINDOW] for i in range(0, len(ids), WINDOW)]
    return [window for window in cut if len(window) >= SHORTEST]
