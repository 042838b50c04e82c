"""`./paceline fit-pruning`: fit the rank test of early exit to a target's own runs. See --help."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

from app.assembly.local import load_models
from app.config import Settings
from app.engine.early_exit.rank_test import CARD, Lens, RowCost
from app.engine.weights.resolve import target_folder
from app.engine.weights.tensors import embedding_sha256
from app.system import write_whole
from training.early_exit.fit import fit_rank, judge
from training.early_exit.trees import record
from training.exit_codes import ended

TEXT = """\
Fit the rank test by which draft tokens leave a pass of the target early (FASER).

The target answers prompts of five domains with the drafters that the settings name, and every draft is verified. After
each of --layers, K is the least number of likelier tokens that drops at most 3 % of the right draft tokens; prompts are
kept out to judge it by. `pruner` in a plan names the folder to a verifier.
"""
COMMON = 256  # frequent tokens that a draft token is compared with
HELD_OUT = 4  # one prompt in so many


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes as `app.cli.main` has them: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    options = _parser().parse_args(words)
    return ended(lambda: run(options, Settings.from_env()))


def run(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Record drafts, fit and judge each layer, write the folder; return its card.

    Raises InvalidRequest, ModelRefused.
    """
    folder = target_folder(settings)
    settings = settings.changed(pruning="off")
    cost = row_cost(AutoConfig.from_pretrained(folder, local_files_only=True))
    layers = tuple(
        sorted(set(options.layers or (cost.num_layers // 3, 7 * cost.num_layers // 10, cost.num_layers - 1)))
    )
    recording = record(settings, load_models(settings), layers, options.prompts, options.max_tokens, options.seed)
    common = [token for token, _ in recording.frequent.most_common(COMMON)]
    lens = Lens.of(folder, np.array(common))
    tokens, is_right = np.array(recording.tokens), np.array(recording.is_right)
    is_held_out = np.array(recording.prompts) % HELD_OUT == 0
    ranks: dict[str, int] = {}
    held_out: dict[str, dict[str, float]] = {}
    for layer in layers:
        counts = lens.likelier(np.array(recording.states[layer]), tokens)
        rank = ranks[str(layer)] = fit_rank(counts[~is_held_out], is_right[~is_held_out])
        judged = judge(counts[is_held_out], is_right[is_held_out], rank)
        held_out[str(layer)] = {name: round(value, 4) for name, value in judged._asdict().items()}
        print(f"layer {layer:>3}: K {rank}, {held_out[str(layer)]}", flush=True)
    card = {
        "embedding_sha256": embedding_sha256(folder),
        "row_cost": cost._asdict(),
        "ranks": ranks,
        "common": common,
        "data": {
            "nodes": len(tokens),
            "prompts_per_domain": options.prompts,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
        },
        "held_out": held_out,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / CARD, json.dumps(card, indent=1) + "\n")
    print(f"wrote {options.out / CARD}")
    return card


def row_cost(config: Any) -> RowCost:
    """Count the multiply-adds of a row of a model of this configuration."""
    d, inner = config.hidden_size, config.intermediate_size
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or d // heads
    attention = d * head_dim * (heads + 2 * key_heads) + heads * head_dim * d
    return RowCost(config.num_hidden_layers, attention + 3 * d * inner, d * config.vocab_size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline fit-pruning", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--layers", type=_numbers, help="of the checkpoints, e.g. 15,24; else at 0.33, 0.7 and the last"
    )
    parser.add_argument("--prompts", type=int, default=16, help="prompts of each domain (default 16)")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer (default 64)")
    parser.add_argument("--seed", type=int, default=7, help="of the prompts (default 7)")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
