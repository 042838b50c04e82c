"""Compute the figures of ways over the same requests, in one form wherever they ran."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from statistics import fmean, quantiles
from typing import Any

from app.store.protocol import Snapshot
from bench.stats import both_bounds
from lab.load import Block
from lab.ways import OFF, titled

Figures = dict[str, Any]
CLOSE = 0.10  # a ratio within this part of 1 is close


def figures(blocks: Listed[Block], ends: Mapping[str, Listed[Listed[Snapshot]]], bases: Iterable[str]) -> Figures:
    """Return each way's figures by block's ends; its ratio to `bases` is by the same requests' tokens/s."""
    domains = [domain for block in blocks for domain, _ in block.requests]
    every = {name: [end for block in own for end in block] for name, own in ends.items()}
    rates = {name: [rate(end) for end in own] for name, own in every.items()}
    found = {}
    for name, own in every.items():
        over = {base: both_bounds(rates[name], rates[base]) for base in bases if base in rates and base != name}
        by_domain: dict[str, list[float]] = {}
        for domain, per_s in zip(domains, rates[name], strict=True):
            by_domain.setdefault(domain, []).append(per_s)
        found[name] = {
            **summary(own),
            "tokens_per_s": round(sum(len(end.tokens) for end in own) / sum(map(_seconds, ends[name])), 2),
            "domains": {domain: round(fmean(those), 2) for domain, those in sorted(by_domain.items())},
            "over": over,
        }
    return found


def summary(ends: Listed[Snapshot]) -> Figures:
    """Return the figures of ended requests; a stream's tokens/s are from its admission to its last token."""
    rounds = sum(end.stats.rounds for end in ends)
    total_s = [_last_s(end) - end.record.created_s for end in ends]
    return {
        "requests": len(ends),
        "stream_tokens_per_s": round(fmean(map(rate, ends)), 2),
        "request_s": round(fmean(total_s), 4),
        "request_p95_s": round(quantiles(total_s, n=20)[-1] if len(total_s) > 1 else total_s[0], 4),
        "first_token_s": round(fmean((end.stats.first_token_s or 0.0) - end.record.created_s for end in ends), 4),
        "tokens_a_round": round(sum(len(end.tokens) for end in ends) / rounds, 3),
        "drafted_a_round": round(sum(end.stats.drafted for end in ends) / rounds, 3),
        "by_drafter": by_drafter(ends),
    }


def by_drafter(ends: Iterable[Snapshot]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for end in ends:
        for name, stats in sorted(end.stats.by_drafter.items()):
            own = found.setdefault(name, [0, 0])
            own[0] += stats.drafted
            own[1] += stats.accepted
    return found


def rate(end: Snapshot) -> float:
    """Return a request's tokens/s from its admission to its last token."""
    return len(end.tokens) / (_last_s(end) - end.record.created_s)


def check_same(ends: Mapping[str, Listed[Snapshot]]) -> None:
    """Raise SystemExit unless all ways generated the same texts: a difference is a bug, not a figure."""
    texts = {name: [end.tokens for end in own] for name, own in ends.items()}
    first = next(iter(texts))
    if different := [name for name in texts if texts[name] != texts[first]]:
        raise SystemExit(f"no figures: other tokens than {first!r} from {', '.join(different)}")


def fingerprint(ends: Iterable[Listed[Snapshot]]) -> str:
    texts = [list(end.tokens) for block in ends for end in block]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def compared(found: Figures, other: Figures) -> Figures:
    """Return stream tokens/s over another result's by way, and which ways are not close or change places.

    `over off`: both results' ratios to plain decoding, of which those that differ by more than CLOSE are `apart`.

    Raises SystemExit where the results are of other texts.
    """
    if found["fingerprint"] != other["fingerprint"]:
        raise SystemExit("the results are of other texts")
    new, old = ({name: own["stream_tokens_per_s"] for name, own in one["ways"].items()} for one in (found, other))
    names = [name for name in new if name in old]
    ratios = {name: round(new[name] / old[name], 3) for name in names}
    pairs = {name: [one["ways"][name].get("over", {}).get(OFF, [1.0])[0] for one in (found, other)] for name in names}
    return {
        "ratio": ratios,
        "over off": pairs,
        "apart": [name for name, (a, b) in pairs.items() if abs(a - b) > CLOSE],
        "not close": [name for name in names if abs(ratios[name] - 1.0) > CLOSE],
        "change places": [[a, b] for a in names for b in names if old[a] > (1.0 + CLOSE) * old[b] and new[a] <= new[b]],
    }


def table(found: Figures) -> str:
    ratios = found.get("compared", {}).get("ratio")
    columns = ["way", "tokens/s a stream", "/ off (bounds)", "tokens/s", "request, s", "p95", "first token, s"]
    columns += ["tokens a round", "drafted", "rounds with models", *(["of the other"] if ratios else [])]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, own in found["ways"].items():
        mean, lower, upper = own["over"].get(OFF, (1.0, 1.0, 1.0))
        cells = [titled(name, own["model_rounds"]), f"{own['stream_tokens_per_s']:.1f}"]
        cells += [f"{mean:.2f} ({lower:.2f} to {upper:.2f})", f"{own['tokens_per_s']:.1f}", f"{own['request_s']:.2f}"]
        cells += [f"{own['request_p95_s']:.2f}", f"{own['first_token_s']:.2f}", f"{own['tokens_a_round']:.2f}"]
        cells += [f"{own['drafted_a_round']:.2f}", f"{own['model_rounds']:.0%}"]
        if ratios:
            cells.append(f"{ratios[name]:.2f}" if name in ratios else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _last_s(end: Snapshot) -> float:
    return end.stats.last_token_s or 0.0


def _seconds(block: Listed[Snapshot]) -> float:
    return max(map(_last_s, block)) - min(end.record.created_s for end in block)
