"""Make a store of phrases out of a target's text: `python -m training.phrases --out FOLDER DATA.jsonl...`

DATA are rows as `./paceline train` makes them (`training.rows`): of each the generated tokens, after the last tokens
of its prompt. The `phrases` drafter (`app/stages/draft/phrases.py`) looks n-grams up in them; no text is learnt twice.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from app.config import Settings
from app.engine.source import resolve
from app.engine.tokenizer import Tokenizer
from app.stages.draft.phrases import FILE, LONGEST


def main() -> int:
    """Write tokens.npy and drafter.json; the exit status."""
    parser = argparse.ArgumentParser(prog="training.phrases", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", nargs="+", type=Path, help="JSON-lines files of a target's answers")
    parser.add_argument("--out", required=True, type=Path, help="folder to write the store to")
    args = parser.parse_args()
    settings = Settings.from_env()
    tokenizer = Tokenizer(resolve(settings.model, settings.home, lambda text: None))
    try:
        rows = [row for path in args.data for row in _rows(path, tokenizer.vocab_size)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"paceline: the data cannot be read: {error!r}", file=sys.stderr)
        return 2
    if not rows:
        print("paceline: the data holds no text", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / FILE, store(rows, tokenizer.vocab_size))
    (args.out / "drafter.json").write_text(json.dumps(_card(rows, tokenizer), indent=2) + "\n")
    return 0


def store(rows: list[dict[str, Any]], vocab_size: int) -> np.ndarray:
    """(N,) token ids in the smallest type that holds them and the id that parts two texts, `vocab_size`."""
    texts = dict.fromkeys((tuple(row["p"][-LONGEST:]), tuple(row["g"])) for row in rows)
    ids = [token for prompt, said in texts for token in (*prompt, *said, vocab_size)]
    return np.array(ids, np.min_scalar_type(vocab_size))


def _rows(path: Path, vocab_size: int) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    for row in rows:
        if not all(type(token) is int and 0 <= token < vocab_size for token in (*row["p"], *row["g"])):
            raise ValueError(f"{path} holds token ids that the target does not have")
    return rows


def _card(rows: list[dict[str, Any]], tokenizer: Tokenizer) -> dict[str, Any]:
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row["d"]] += len(row["g"])
    return {"kind": "phrases", "tokenizer_sha256": tokenizer.sha256, "texts": len(rows), "tokens": dict(tokens)}


if __name__ == "__main__":
    sys.exit(main())
