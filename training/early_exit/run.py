"""`./paceline fit-pruning`: fit a predictor of rejected draft tokens to a target's own runs. See --help."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoConfig

from app.assembly.local import load_models
from app.config import Settings
from app.engine.early_exit.decisions import RowCost
from app.engine.early_exit.predictors import CARD, WEIGHTS, Count, FittedPredictor, Lens, head_rows, last_norm
from app.engine.weights.resolve import target_folder
from app.engine.weights.tensors import embedding_sha256
from app.system import make_whole, write_whole
from training.early_exit.fit import Fit, Judged, choose, fit_layer, fit_rank, judge, net_rows
from training.early_exit.trees import Recording, forward_of, record
from training.exit_codes import ended

TEXT = """\
Learn which draft tokens the target will reject, from its own states half way through a pass.

The target answers prompts of five domains with the drafters that the settings name; whatever they draft is verified. At
each of --layers, for every draft token: how well does the state predict that it is rejected? Prompts are kept out to
judge by. The folder holds the checkpoints where dropping rows gains most together at --price, FASER's K at three
depths, counted over frequent tokens and over the whole vocabulary, and what all came to; `pruner` in a plan names it to
a verifier.
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
    settings = settings.changed(pruning="off")
    cost = row_cost(AutoConfig.from_pretrained(folder, local_files_only=True))
    layers = tuple(sorted(set(options.layers or _usual(cost.num_layers))))
    models = load_models(settings)
    recording = record(settings, models, layers, options.prompts, options.max_tokens, options.seed)
    torch.set_num_threads(settings.verify_threads)
    numbers = np.arange(int(recording.prompts.max()) + 1)
    train = numbers % HELD_OUT != 0
    common = np.array([token for token, _ in Counter(recording.tokens.tolist()).most_common(COMMON)])
    lens, norm = Lens(head_rows(folder), common), last_norm(folder)
    counts: dict[str, Count] = {"faser": partial(lens.likelier, norm), "faser-whole": forward_of(models).head_count()}
    found = _fit(recording, layers, lens, counts, train, options.price, cost)

    def gain(chosen: tuple[int, ...]) -> float:
        return net_rows(recording, {one: found.chances[one] for one in chosen}, ~train, options.price, cost.rest)

    chosen = choose(gain, layers, options.checkpoints)
    card = {
        "embedding_sha256": embedding_sha256(folder),
        "row_cost": cost._asdict(),
        **_card(found, chosen, layers),
        "data": {
            "nodes": len(recording.nodes.tokens),
            "rows": len(recording.tokens),
            "prompts_per_domain": options.prompts,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
            "price": options.price,
        },
        "held_out_together": {
            " ".join(map(str, some)): round(gain(some), 4)
            for some in (choose(gain, layers, count) for count in range(1, len(layers) + 1))
        },
    }
    _write(options.out, common, {layer: found.fits[layer] for layer in chosen}, card)
    of = f"{', '.join(map(str, chosen))} of {cost.num_layers}"
    print(f"wrote {options.out}: checkpoints after layers {of}; together net {gain(chosen):+.3f} rows a node")
    return card


class _Found(NamedTuple):
    """What came of each layer."""

    fits: dict[int, Fit]
    chances: dict[int, np.ndarray]  # (n,) float64 by the fits, of all nodes
    ranks: dict[str, dict[int, int]]  # by what counts, then layer
    judged: dict[str, dict[int, Judged]]  # by rule, then layer


def _fit(
    recording: Recording,
    layers: tuple[int, ...],
    lens: Lens,
    counts: dict[str, Count],
    train: np.ndarray,
    price: float,
    cost: RowCost,
) -> _Found:
    """Fit and judge every rule at every layer, and print how well it does."""
    found = _Found({}, {}, {name: {} for name in counts}, {name: {} for name in ("fitted", *counts)})
    tokens, priors = np.array(recording.nodes.tokens), np.array(recording.nodes.priors)
    for layer in layers:
        states, rest = recording.at_nodes(layer), cost.rest(layer)
        found.fits[layer] = fit = fit_layer(recording, layer, lens, train)
        predictor = FittedPredictor(lens, {layer: fit.weight}, {layer: fit.logistic})
        found.chances[layer] = chances = predictor.chances(layer, states, tokens, priors)
        found.judged["fitted"][layer] = judge(recording, chances, chances, ~train, price, rest)
        for name, count in counts.items():
            likelier = count(states, tokens)
            found.ranks[name][layer] = rank = fit_rank(recording, likelier, train)
            stays = (likelier < rank).astype(np.float64)
            found.judged[name][layer] = judge(recording, stays, -likelier, ~train, price, rest)
        print(_line(layer, rest, found), flush=True)
    return found


def _card(found: _Found, chosen: tuple[int, ...], layers: tuple[int, ...]) -> dict[str, Any]:
    """Return what the rules need, the fitted one at the chosen layers, FASER's at three, and how all did."""
    depths = sorted({layers[0], layers[(len(layers) - 1) // 2], layers[-1]})
    return {
        "logistic": {str(layer): found.fits[layer].logistic.tolist() for layer in chosen},
        "ranks": {str(layer): found.ranks["faser"][layer] for layer in depths},
        "whole_ranks": {str(layer): found.ranks["faser-whole"][layer] for layer in depths},
        "held_out": {
            name: {str(layer): _rounded(asdict(one)) for layer, one in by_layer.items()}
            for name, by_layer in found.judged.items()
        },
    }


def row_cost(config: Any) -> RowCost:
    """Count the multiply-adds of a row of a model of this configuration."""
    d, inner = config.hidden_size, config.intermediate_size
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or d // heads
    layer = d * head_dim * (2 * heads + 2 * key_heads) + 3 * d * inner
    return RowCost(config.num_hidden_layers, layer, config.vocab_size * d)


def _usual(num_layers: int) -> list[int]:
    """Return the default candidates: from a third of the layers to the last but one."""
    return [max(1, min(num_layers - 1, round(num_layers * part))) for part in (1 / 3, 0.5, 0.7, 0.8, 0.9, 1.0)]


def _line(layer: int, rest: float, found: _Found) -> str:
    parts = []
    for name, by_layer in found.judged.items():
        one = by_layer[layer]
        of_rank = f" K {found.ranks[name][layer]}," if name in found.ranks else ""
        parts.append(
            f"{name}:{of_rank} AUC {one.auc:.3f} (drafters {one.auc_prior:.3f}), precision {one.precision:.3f}, "
            f"recall {one.recall:.3f}, dropped {one.dropped:.3f}, lost {one.lost:.3f}, net {one.net_rows:+.3f}"
        )
    return f"layer {layer:>3}, {rest:.2f} of a row to come; " + "; ".join(parts)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        str(name): _rounded(value) if isinstance(value, dict) else round(value, 4) for name, value in values.items()
    }


def _write(folder: Path, common: np.ndarray, fits: dict[int, Fit], card: dict[str, Any]) -> None:
    """Write weights and card; the card last, so where there is one the rest is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"common": common, **{f"lens.{layer}": fit.weight.astype(np.float16) for layer, fit in fits.items()}}
    make_whole(folder / WEIGHTS, lambda scratch: save_file(arrays, scratch))
    write_whole(folder / CARD, json.dumps(card, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paceline fit-pruning", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--layers", type=_numbers, help="candidates for checkpoints, e.g. 15,24; else from a third on")
    parser.add_argument("--checkpoints", type=int, help="how many to write; else as many as gain together")
    parser.add_argument("--prompts", type=int, default=16, help="prompts of each domain (default 16)")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer (default 64)")
    parser.add_argument("--price", type=float, default=0.1, help="of a row, in tokens of the step (default 0.1)")
    parser.add_argument("--seed", type=int, default=7, help="of the prompts (default 7)")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
