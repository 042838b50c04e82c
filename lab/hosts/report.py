"""Compute the figures of arms over the same requests, and how far a prediction is from them.

Takes ended requests, live or simulated; knows nothing of how they were run.
"""

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from itertools import combinations
from statistics import fmean
from typing import Any

from app.store.protocol import Snapshot
from bench.stats import paired_ratio
from lab.cooperate.systems import by_drafter_of
from lab.cooperate.variants import asked_cells

CLOSE = 0.10  # predictions within this part of the measured, and arms that differ by no more, are alike
Ends = Mapping[str, Listed[Listed[Snapshot]]]  # by arm and block


def figures(ends: Ends, base: str) -> dict[str, Any]:
    """Return each arm's figures, with its ratio to `base` by the same requests' tokens/s."""
    rates = {name: [rate(end) for block in own for end in block] for name, own in ends.items()}
    return {
        name: {**arm_figures(own), f"over {base}": _rounded(paired_ratio(rates[name], rates[base]).asdict())}
        for name, own in ends.items()
    }


def arm_figures(blocks: Listed[Listed[Snapshot]]) -> dict[str, Any]:
    """Return an arm's figures; tokens/s a stream is a mean over requests from admission to the last token."""
    ends = [end for block in blocks for end in block]
    rounds = sum(end.stats.rounds for end in ends)
    tokens = sum(len(end.tokens) for end in ends)
    return {
        "requests": len(ends),
        "stream_tokens_per_s": round(fmean(map(rate, ends)), 2),
        "tokens_per_s": round(tokens / sum(map(_seconds, blocks)), 2),
        "tokens_a_round": round(tokens / rounds, 3),
        "drafted_a_round": round(sum(end.stats.drafted for end in ends) / rounds, 3),
        "by_drafter": {name: list(counts) for name, counts in sorted(by_drafter_of(ends).items())},
    }


def rate(end: Snapshot) -> float:
    """Return a request's tokens/s from its admission to its last token."""
    return len(end.tokens) / ((end.stats.last_token_s or 0.0) - end.record.created_s)


def check_same(ends: Mapping[str, Listed[Snapshot]]) -> None:
    """Raise SystemExit unless all arms generated the same texts: a difference is a bug, not a figure."""
    texts = {name: [end.tokens for end in own] for name, own in ends.items()}
    first = next(iter(texts))
    if different := [name for name in texts if texts[name] != texts[first]]:
        raise SystemExit(f"no figures: other tokens than {first!r} from {', '.join(different)}")


def fingerprint(ends: Listed[Snapshot]) -> str:
    """Return a hash of the texts: a recording of the same prompts has the same one."""
    return hashlib.sha256(json.dumps([list(end.tokens) for end in ends]).encode()).hexdigest()[:16]


def deviations(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return predicted / measured tokens/s a stream by arm, and the pairs of arms that change places though they
    differ by more than `CLOSE`."""
    measured = {name: own["stream_tokens_per_s"] for name, own in found["arms"].items()}
    predicted = {name: own["stream_tokens_per_s"] for name, own in found["predicted"]["arms"].items()}
    pairs = [
        (a, b) if measured[a] > measured[b] else (b, a)
        for a, b in combinations(measured, 2)
        if abs(measured[a] / measured[b] - 1.0) > CLOSE
    ]
    ratios = {name: round(predicted[name] / measured[name], 3) for name in measured}
    return {
        "predicted / measured": ratios,
        "outside": [name for name, ratio in ratios.items() if abs(ratio - 1.0) > CLOSE],
        "pairs apart": len(pairs),
        "pairs that change places": [[a, b] for a, b in pairs if predicted[a] <= predicted[b]],
    }


def table(found: Mapping[str, Any]) -> str:
    """Return the arms as a Markdown table, with the prediction where there is one."""
    predicted = found.get("predicted", {}).get("arms")
    ratios = found["deviations"]["predicted / measured"] if predicted else {}
    more = "| predicted | of measured " if predicted else ""
    common = "| arm | tokens/s a stream | / off (lower bound) | tokens a round | rounds that asked models "
    head = f"{common}{more}| accepted, by drafter |"
    per_s = found.get("texts", {}).get("rate")
    load = f"{found['streams']} at once" if per_s is None else f"{per_s:g} a second"
    lines = [f"{load}, a hop of {found['place']['hop_ms']} ms", head]
    lines.append("|---" * (head.count("|") - 1) + "|")
    for name, own in found["arms"].items():
        over = own["over off"]
        accepted = ", ".join(f"{drafter} {right}" for drafter, (_, right) in own["by_drafter"].items())
        title, asked = asked_cells(name, own.get("model_rounds"))  # files from before it was counted have none
        beside = f"| {predicted[name]['stream_tokens_per_s']:.1f} | {ratios[name]:.2f} " if predicted else ""
        lines.append(
            f"| {title} | {own['stream_tokens_per_s']:.1f} | {over['mean']:.2f} ({over['lower']:.2f}) "
            f"| {own['tokens_a_round']:.2f} | {asked} {beside}| {accepted} |"
        )
    return "\n".join(lines) + "\n"


def _seconds(block: Listed[Snapshot]) -> float:
    return max(end.stats.last_token_s or 0.0 for end in block) - min(end.record.created_s for end in block)


def _rounded(ratio: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in ratio.items()}
