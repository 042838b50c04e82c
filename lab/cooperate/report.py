"""Turn the runs of `lab cooperate` into figures: rates, accepted lengths, the parts of a step's
time, and the bars.

Takes runs by arm; knows nothing of how they were made.
"""

import statistics
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed
from typing import Any

from bench.stats import median, paired_ratio
from lab.cooperate.systems import Run
from lab.cooperate.variants import FULL, OFF, SINGLE, asked_cells

GENERATE, ASSISTED = "transformers generate", "transformers assisted"
COMPARED = (
    (FULL, OFF),
    (FULL, SINGLE),
    (FULL, "generalist"),
    (FULL, "generalist + tables"),
    (FULL, "specinfer"),
    (FULL, "cosine"),
    (FULL, "without routing"),
    (FULL, "without fusion"),
    (FULL, "without run-ahead"),
    (FULL, "without suffix"),
    ("cosine", SINGLE),
    ("cosine", "generalist"),
    (FULL, GENERATE),
    (FULL, ASSISTED),
    (OFF, GENERATE),
)
Figures = dict[str, Any]
Group = tuple[str, list[str]]  # a domain, and its prompts that ran at once


def figures(runs: Mapping[str, Listed[Run]], measured: Listed[Group]) -> Figures:
    """Compute all figures of one number of streams."""
    domains = list(dict.fromkeys(domain for domain, _ in measured))
    found: Figures = {"arms": {}, "ratios": {}, "acceptance": {}}
    for name, own in runs.items():
        by_domain = {d: [run for run, (domain, _) in zip(own, measured, strict=True) if domain == d] for d in domains}
        found["arms"][name] = summary(own) | {
            "accepted_length": _mean(accepted_length(of_domain) for of_domain in by_domain.values()),
            "texts_differ": _differing(own, runs[OFF]),
            "domains": {domain: summary(of_domain) for domain, of_domain in by_domain.items()},
        }
        found["acceptance"][name] = {domain: acceptance(of_domain) for domain, of_domain in by_domain.items()}
    for new, old in COMPARED:
        if new in runs and old in runs:
            found["ratios"][f"{new} / {old}"] = ratios(runs[new], runs[old], measured, domains)
    return found


def summary(runs: Listed[Run]) -> Figures:
    """Return medians over groups of prompts, and a step's milliseconds: one pass of the target for
    all streams."""
    steps = sum(run.steps for run in runs) or 1
    decode_s, draft_s, verify_s = (sum(getattr(run, name) for run in runs) for name in SPLIT)
    return {
        "tokens_per_s": round(median([run.tokens_per_s for run in runs]), 2),
        "latency_s": round(median([s for run in runs for s in run.latency_s]), 3),
        "ttft_s": round(median([s for run in runs for s in run.ttft_s]), 4),
        "tokens_per_round": round(accepted_length(runs), 3),
        "model_rounds": model_rounds(runs),
        "ms_a_step": {
            "all": _ms(decode_s, steps),
            "draft": _ms(draft_s, steps),
            "verify": _ms(verify_s, steps),
            "rest": _ms(decode_s - draft_s - verify_s, steps),
        },
    }


SPLIT = ("decode_s", "draft_s", "verify_s")


def accepted_length(runs: Iterable[Run]) -> float:
    """Return tokens committed a round, the target's own included; 0 where rounds are not known."""
    runs = [*runs]
    rounds = sum(run.rounds for run in runs)
    return sum(run.tokens for run in runs) / rounds if rounds else 0.0


def model_rounds(runs: Iterable[Run]) -> float | None:
    """Return the part of the rounds after a request's first token for which a model was asked; None: not known."""
    runs = [*runs]
    rounds = sum(run.later_rounds for run in runs)
    return round(sum(run.model_rounds for run in runs) / rounds, 3) if rounds else None


def acceptance(runs: Iterable[Run]) -> dict[str, float]:
    """Return, by drafter, the share of its verified tokens that was right."""
    totals: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, (drafted, accepted) in run.by_drafter.items():
            old = totals.get(name, (0, 0))
            totals[name] = (old[0] + drafted, old[1] + accepted)
    return {name: round(accepted / drafted, 3) for name, (drafted, accepted) in sorted(totals.items()) if drafted}


def ratios(new: Listed[Run], old: Listed[Run], measured: Listed[Group], domains: Listed[str]) -> Figures:
    """Return paired ratios of tokens/s: over all groups, and for each domain."""
    pairs = [(domain, a.tokens_per_s, b.tokens_per_s) for (domain, _), a, b in zip(measured, new, old, strict=True)]
    found: Figures = {"all": _ratio(pairs)}
    for domain in domains:
        found[domain] = _ratio([pair for pair in pairs if pair[0] == domain])
    return found


def bars(streams: Mapping[str, Figures]) -> Figures:
    """Compare one stream's figures with their aims: what was measured, the least, and whether it
    holds."""
    one = streams.get("1")
    if one is None:
        return {}
    found: Figures = {}

    def bar(name: str, value: float, least: float) -> None:
        found[name] = {"measured": round(value, 3), "at_least": least, "holds": value >= least}

    aims = ((OFF, 1.5), (GENERATE, 2.4), (ASSISTED, 1.6))
    for rival, least in aims:
        if (ratio := one["ratios"].get(f"{FULL} / {rival}")) is not None:
            bar(f"{FULL} / {rival}, mean over the domains", ratio["all"]["mean"], least)
    for domain, ratio in one["ratios"].get(f"{FULL} / {OFF}", {}).items():
        if domain != "all":
            bar(f"{FULL} / {OFF}, lower bound, {domain}", ratio["lower"], 0.95)
    if FULL in one["arms"]:
        bar("accepted length, mean over the domains", one["arms"][FULL]["accepted_length"], 2.4)
    return found


def table(found: Figures) -> str:
    """Return the arms as a Markdown table."""
    domains = list(found["arms"][OFF]["domains"])
    head = "| arm | tokens/s | latency, s | tokens a round | rounds that asked models | draft / verify / rest, ms "
    lines = [f"{head}| {' | '.join(domains)} |", "|---" * (6 + len(domains)) + "|"]
    for name, arm in found["arms"].items():
        ms = arm["ms_a_step"]
        split = f"{ms['draft']} / {ms['verify']} / {ms['rest']}" if ms["all"] else ""
        rates = " | ".join(f"{arm['domains'][domain]['tokens_per_s']:.1f}" for domain in domains)
        length = f"{arm['accepted_length']:.2f}" if arm["accepted_length"] else ""
        title, asked = asked_cells(name, arm["model_rounds"])
        latency = f"{arm['latency_s']:.2f}"
        lines.append(f"| {title} | {arm['tokens_per_s']:.1f} | {latency} | {length} | {asked} | {split} | {rates} |")
    return "\n".join(lines)


def _differing(own: Listed[Run], base: Listed[Run]) -> int:
    pairs = (pair for a, b in zip(own, base, strict=True) for pair in zip(a.token_ids, b.token_ids, strict=True))
    return sum(a != b for a, b in pairs)


def _ratio(pairs: Listed[tuple[str, float, float]]) -> dict[str, float]:
    return paired_ratio([new for _, new, _ in pairs], [old for _, _, old in pairs]).asdict()


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 3)


def _ms(seconds: float, steps: int) -> float:
    return round(1e3 * seconds / steps, 2)
