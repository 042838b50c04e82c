"""Make a store of phrases out of a target's text: `python -m training.phrases --out FOLDER DATA.jsonl...`

DATA are rows as `./paceline train` makes them (`training.data.rows`): of each the generated tokens, after the last
tokens of its prompt. The `phrases` drafter (`app/stages/draft/phrases.py`) looks n-grams up in them; no text is
learnt twice.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import resolve
from app.errors import InvalidRequest
from app.stages.draft.phrases import FILE
from kernels.host.phrase_tables import LONGEST
from training.exit_codes import ended

Text = tuple[int, ...]  # the last tokens of a prompt and its answer


def main() -> int:
    """Run the command; return its exit code, as `training.exit_codes` has them."""
    parser = argparse.ArgumentParser(prog="training.phrases", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", nargs="+", type=Path, help="JSON-lines files of a target's answers")
    parser.add_argument("--out", required=True, type=Path, help="folder to write the store to")
    parser.add_argument("--onto", type=Path, help="folder of a store whose texts come first; may be the same")
    args = parser.parse_args()
    return ended(lambda: run(args, Settings.from_env()))


def run(args: argparse.Namespace, settings: Settings) -> None:
    """Write the token file and drafter.json. Raises InvalidRequest."""
    tokenizer = Tokenizer(resolve(settings.model, settings.home, lambda text: None))
    try:
        rows = [row for path in args.data for row in _rows(path, tokenizer.vocab_size)]
        texts, card = _held(args.onto, tokenizer) if args.onto else ([], {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest("data", f"cannot be read: {error!r}") from error
    if not rows:
        raise InvalidRequest("data", "holds no text")
    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / FILE, store(rows, tokenizer.vocab_size, texts))
    (args.out / "drafter.json").write_text(json.dumps(_card(rows, tokenizer, card), indent=2) + "\n")


def store(rows: list[dict[str, Any]], vocab_size: int, before: list[Text] | None = None) -> np.ndarray:
    """Join the texts of `before` and of the rows, each once, to one array of token ids, (N,).

    The id `vocab_size` ends each text; the dtype is the smallest unsigned one that holds it.
    """
    texts = dict.fromkeys([*(before or []), *((*row["p"][-LONGEST:], *row["g"]) for row in rows)])
    ids = [token for text in texts for token in (*text, vocab_size)]
    return np.array(ids, np.min_scalar_type(vocab_size))


def _held(folder: Path, tokenizer: Tokenizer) -> tuple[list[Text], dict[str, Any]]:
    """Read a store's texts and its card. Raises ValueError for one of another tokenizer."""
    card = json.loads((folder / "drafter.json").read_text())
    if card["tokenizer_sha256"] != tokenizer.sha256:
        raise ValueError(f"the store in {folder} is of another tokenizer")
    ids = np.load(folder / FILE, allow_pickle=False)
    ends = np.flatnonzero(ids >= tokenizer.vocab_size)
    return [tuple(text[text < tokenizer.vocab_size].tolist()) for text in np.split(ids, ends) if len(text) > 1], card


def _rows(path: Path, vocab_size: int) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    for row in rows:
        if not all(type(token) is int and 0 <= token < vocab_size for token in (*row["p"], *row["g"])):
            raise ValueError(f"{path} holds token ids that the target does not have")
    return rows


def _card(rows: list[dict[str, Any]], tokenizer: Tokenizer, before: dict[str, Any]) -> dict[str, Any]:
    tokens = Counter[str](before.get("tokens", {}))
    for row in rows:
        tokens[row["d"]] += len(row["g"])
    texts = before.get("texts", 0) + len(rows)
    return {"kind": "phrases", "tokenizer_sha256": tokenizer.sha256, "texts": texts, "tokens": dict(tokens)}


if __name__ == "__main__":
    sys.exit(main())
