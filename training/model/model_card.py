"""Write a drafter's folder: config.json, model.gguf, drafter.json (the card), MODEL_CARD.md.

The card is JSON: identity, data, settings and scores of the drafter. MODEL_CARD.md has its numbers for readers.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from app.engine.weights.resolve import GGUF
from app.system import make_whole, write_whole
from training.data.rows import Row
from training.model.evaluate import ALL, DRAFTED
from training.model.student import Student
from training.model.weights_file import write_weights

CARD = "drafter.json"


def about_data(rows: list[Row], sources: Iterable[str]) -> dict[str, Any]:
    """Count the rows and the tokens with labels that a drafter learnt from, in all and by domain."""
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row.domain] += len(row.continuation)
    counts = Counter(row.domain for row in rows)
    return {
        "rows": len(rows),
        "tokens": tokens.total(),
        "with_states": sum(row.states is not None for row in rows),
        "domains": {name: {"rows": counts[name], "tokens": tokens[name]} for name in sorted(counts)},
        "sources": list(sources),
    }


def write(folder: Path, target: Path, layers: list[int], student: Student, card: dict[str, Any]) -> None:
    """Write the folder; the card comes last, so where there is one the rest is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.from_pretrained(target, local_files_only=True)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in layers]
    kept = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}  # a local path
    write_whole(folder / "config.json", json.dumps(kept, indent=2) + "\n")
    make_whole(folder / GGUF, lambda scratch: write_weights(scratch, student.weights()))
    write_whole(folder / "MODEL_CARD.md", model_card(folder.name, card))
    write_whole(folder / CARD, json.dumps(card, indent=2) + "\n")


def model_card(name: str, card: dict[str, Any]) -> str:
    """Format the card as Markdown."""
    data, reads = card["data"], "reads" if card["features"] else "does not read"
    lines = [
        f"# {name}",
        "",
        "A drafter for Paceline: it guesses what its target says next, and can never change it. It holds layers and a",
        "list of the tokens it can say; embedding and head are rows of the target's embedding, checked by hash.",
        f"It {reads} the target's last hidden state at the start of a round.",
        "",
        f"* made from {_start(card['start'])}, by `./paceline train`, seed {card['seed']}, {card['steps']} steps of "
        f"{card['batch']} rows, {card['minutes']} minutes",
        f"* head: {card['head']} tokens; loss: {card['loss']['kind']}, {card['loss']['last']} at the end",
        f"* learnt from {data['rows']} rows, {data['tokens']} tokens: {', '.join(data['sources'])}",
        f"* target: embedding sha256 `{card['embedding_sha256'][:16]}...`, tokenizer sha256 "
        f"`{card['tokenizer_sha256'][:16]}...`",
        "",
        f"Measured on prompts that were kept out, against the target's own greedy text, {DRAFTED} tokens drafted one",
        "after the other: how often the first is right, and the tokens committed a round, the target's own included.",
        "",
        "| domain | learnt from: rows | tokens | held-out rows | first token right | tokens a round |",
        "|---|---|---|---|---|---|",
    ]
    for domain in [*sorted(data["domains"].keys() | (card["held_out"].keys() - {ALL})), ALL]:
        learnt, held = data["domains"].get(domain, data if domain == ALL else {}), card["held_out"].get(domain)
        measured = f"{held['rows']} | {held['top1']:.3f} | {held['tokens_per_round']:.2f}" if held else "0 | - | -"
        lines.append(f"| {domain} | {learnt.get('rows', 0)} | {learnt.get('tokens', 0)} | {measured} |")
    return "\n".join(lines) + "\n"


def _start(start: dict[str, Any]) -> str:
    if "noise" in start:
        return f"{start['noise']} layers of noise"
    return f"the drafter {start['drafter']}" if "drafter" in start else f"the target's layers {start['layers']}"
