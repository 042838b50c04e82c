"""`./paceline fit-pruning`: fit a predictor of rejected draft tokens to a target's own runs. See --help."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoConfig

from app.config import Settings
from app.engine.early_exit.predictors import (
    CARD,
    WEIGHTS,
    FittedPredictor,
    Lens,
    RankPredictor,
    head_rows,
    last_norm,
)
from app.engine.weights.resolve import target_folder
from app.engine.weights.tensors import embedding_sha256
from app.system import make_whole, write_whole
from training.early_exit.fit import Fit, Judged, fit_layer, judge
from training.early_exit.trees import Recording, record
from training.exit_codes import ended

TEXT = """\
Learn which draft tokens the target will reject, from its own states half way through a pass.

The target answers prompts of five domains with the drafters that the settings name; whatever they draft is verified. At
each of --layers, for every draft token: how well does the state predict that it is rejected? Prompts are kept out to
judge by. The folder holds the checkpoint where dropping rows gains most at --price, FASER's K for every
second one, and what all came to; `PACELINE_PRUNER` names it to a verifier.
"""
COMMON = 256  # tokens that a draft token is compared with
HELD_OUT = 4  # one prompt in so many


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes as `app.cli.main` has them: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    options = _parser().parse_args(words)
    return ended(lambda: run(options, Settings.from_env()))


def run(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Record drafts, fit and evaluate each layer, write the folder; return its card.

    Raises InvalidRequest, ModelRefused.
    """
    folder = target_folder(settings)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    layers = tuple(sorted(set(options.layers or _usual(config.num_hidden_layers))))
    recording = record(
        settings.model_copy(update={"pruning": "off"}), layers, options.prompts, options.max_tokens, options.seed
    )
    torch.set_num_threads(settings.verify_threads)
    numbers = np.arange(int(recording.prompts.max()) + 1)
    train = numbers % HELD_OUT != 0
    common = np.array([token for token, _ in Counter(recording.tokens.tolist()).most_common(COMMON)])
    lens, norm = Lens(head_rows(folder), common), last_norm(folder)
    fits: dict[int, Fit] = {}
    judged: dict[str, dict[int, Judged]] = {"fitted": {}, "faser": {}}
    for layer in layers:
        fits[layer] = fit = fit_layer(recording, layer, lens, norm, train)
        rest = rest_of(config, layer)
        rules: dict[str, FittedPredictor | RankPredictor] = {
            "fitted": FittedPredictor(lens, {layer: fit.weight}, {layer: fit.logistic}),
            "faser": RankPredictor(lens, norm, {layer: fit.rank}),
        }
        for name, rule in rules.items():
            judged[name][layer] = judge(recording, layer, rule, ~train, options.price, rest)
        print(_line(layer, rest, judged), flush=True)
    best = max(layers, key=lambda layer: judged["fitted"][layer].net_rows)
    depths = layers[1::2] or layers
    card = _card(folder, config, best, fits[best], judged, recording, options)
    card["ranks"] = {str(layer): fits[layer].rank for layer in depths}
    card["ranks_rest"] = rest_of(config, depths[-1])
    _write(options.out, common, best, fits[best], card)
    print(f"wrote {options.out}: a checkpoint after layer {best} of {config.num_hidden_layers}")
    return card


def rest_of(config: Any, layer: int) -> float:
    """Return the share of a row's multiplications after the first `layer` layers, the head's included."""
    d, inner = config.hidden_size, config.intermediate_size
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or d // heads
    one = d * head_dim * (2 * heads + 2 * key_heads) + 3 * d * inner
    head = config.vocab_size * d
    return float(((config.num_hidden_layers - layer) * one + head) / (config.num_hidden_layers * one + head))


def _usual(num_layers: int) -> list[int]:
    """Return the default candidates: from a third of the layers to the last but one."""
    return [max(1, min(num_layers - 1, round(num_layers * part))) for part in (1 / 3, 0.5, 0.7, 0.8, 0.9, 1.0)]


def _line(layer: int, rest: float, judged: dict[str, dict[int, Judged]]) -> str:
    found = []
    for name, by_layer in judged.items():
        one = by_layer[layer]
        found.append(
            f"{name}: AUC {one.auc:.3f} (drafters {one.auc_prior:.3f}), precision {one.precision:.3f}, "
            f"recall {one.recall:.3f}, dropped {one.dropped:.3f}, lost {one.lost:.3f}, net {one.net_rows:+.3f}"
        )
    return f"layer {layer:>3}, {rest:.2f} of a row to come; " + "; ".join(found)


def _card(
    folder: Path,
    config: Any,
    best: int,
    fit: Fit,
    judged: dict[str, dict[int, Judged]],
    recording: Recording,
    options: argparse.Namespace,
) -> dict[str, Any]:
    return {
        "embedding_sha256": embedding_sha256(folder),
        "layers": [best],
        "rest": rest_of(config, best),
        "logistic": {str(best): fit.logistic.tolist()},
        "data": {
            "nodes": len(recording.nodes.tokens),
            "rows": len(recording.tokens),
            "prompts_per_domain": options.prompts,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
            "price": options.price,
        },
        "held_out": {
            name: {str(layer): _rounded(asdict(one)) for layer, one in by_layer.items()}
            for name, by_layer in judged.items()
        },
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        str(name): _rounded(value) if isinstance(value, dict) else round(value, 4) for name, value in values.items()
    }


def _write(folder: Path, common: np.ndarray, layer: int, fit: Fit, card: dict[str, Any]) -> None:
    """Write weights and card; the card last, so where there is one the rest is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"common": common, f"lens.{layer}": fit.weight.astype(np.float16)}
    make_whole(folder / WEIGHTS, lambda scratch: save_file(arrays, scratch))
    write_whole(folder / CARD, json.dumps(card, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline fit-pruning", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument(
        "--layers", type=_numbers, help="candidates for the checkpoint, e.g. 15,24; else from a third on"
    )
    parser.add_argument("--prompts", type=int, default=16, help="prompts of each domain (default 16)")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer (default 64)")
    parser.add_argument("--price", type=float, default=0.1, help="of a row, in tokens of the step (default 0.1)")
    parser.add_argument("--seed", type=int, default=7, help="of the prompts (default 7)")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
