"""Compare the figures with their bars: measured, bound, and whether it holds; None where figures
are missing. Gains of overlap have no bound and are stated."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from bench.gpu.random_steps import ROWS
from bench.gpu.setting import DRAFTED, Figures, Setting

ATTENTION = 0.7  # of the copy bandwidth, at least
ONE_TOKEN = 1.25  # times its floor, at most
EIGHT_TOKENS = 1.10  # times a step of one token, at most
DRAFTS = {1: 1.5, 16: 1.0}  # by requests at once, times the tokens/s without drafts, at least


def measure(setting: Setting, found: Figures) -> None:
    """Write every bar into `found`, from the figures of the other sections."""
    figures = setting.figures

    def bar(name: str, figure: Callable[..., float], *of: Any, **bound: float) -> None:
        found[name] = _bar(partial(figure, figures, *of), **bound)
        print(f"{name:72} {found[name]}", flush=True)

    for kind, how in (("of_copy", "as it is"), ("captured_of_copy", "as a captured step lays it out")):
        name = f"attention, 32k keys, batch 8 and 64, of copy bandwidth, {how}"
        bar(name, _attention, kind, at_least=ATTENTION)
    for kind in ("gpu", "wall"):
        bar(f"8B, one token / floor, {kind}", _one_token, kind, at_most=ONE_TOKEN)
        for model, context in product(("8B", "1B"), (512, 8192)):
            name = f"{model}, 8 tokens / 1 token, batch 8, {context} in the cache, {kind}"
            bar(name, _eight_tokens, model, context, kind, at_most=EIGHT_TOKENS)
    for model in figures.get("exact", {}).keys() - {"seconds"}:
        bar(f"{model}, exact mode: rows of {ROWS} with other bits, and flips", _inexact, model, at_most=0.0)
        bar(f"{model}, default mode: flips per 10,000 rows in company", _flips_by_default, model)
    for requests, bound in DRAFTS.items():
        bar(f"8B, drafts on / off, {requests} at once, tokens/s", _drafts, requests, at_least=bound)
    for requests, drafted in product(DRAFTS, (0, DRAFTED)):
        name = f"8B, the host beside the device / after it, {requests} at once, {drafted} drafts, tokens/s"
        bar(name, _hidden, requests, drafted)
    for batch in figures.get("overlap", {}).get("batches", {}):
        bar(f"8B, drafting beside verifying / after it, batch {batch}, best division", _gain, batch)


def _bar(figure: Callable[[], float], *, at_least: float | None = None, at_most: float | None = None) -> Figures:
    bounds = {"at_least": at_least, "at_most": at_most}
    bound: Figures = {name: value for name, value in bounds.items() if value is not None}
    try:
        value = figure()
    except (LookupError, ValueError):
        return {**bound, "measured": None, "holds": None}
    holds = value >= at_least if at_least is not None else value <= at_most if at_most is not None else None
    return {**bound, "measured": round(value, 3), "holds": holds}


def _attention(figures: Figures, kind: str) -> float:
    lines = figures["bandwidth"]["attention"]
    return min(line[kind] for line in lines if line["context"] == 32768 and line["batch"] >= 8)


def _one_token(figures: Figures, kind: str) -> float:
    return float(_step(figures, "8B", 512, 1, 0)[f"{kind} / floor"])


def _eight_tokens(figures: Figures, model: str, context: int, kind: str) -> float:
    eight, one = (_step(figures, model, context, 8, drafted)[f"{kind}_ms"] for drafted in (7, 0))
    return float(eight / one)


def _step(figures: Figures, model: str, context: int, batch: int, drafted: int) -> Figures:
    return _line(figures["steps"][model]["steps"], context=context, batch=batch, drafted=drafted)


def _inexact(figures: Figures, model: str) -> float:
    exact = figures["exact"][model]["exact"]
    if exact["in company"]["rows"] < ROWS:
        raise LookupError("the section's time ran out before")
    kinds = [kind for kind in exact["flips"].values() if isinstance(kind, dict)]
    others = exact["rows_with_other_bits"] + exact["in company"]["rows_with_other_bits"]
    return float(others + sum(kind["flips_per_10000"] for kind in kinds))


def _flips_by_default(figures: Figures, model: str) -> float:
    return float(figures["exact"][model]["default"]["in company"]["flips_per_10000"])


def _drafts(figures: Figures, requests: int) -> float:
    drafting, plain = (_loop(figures, requests, drafted)["tokens_s"] for drafted in (DRAFTED, 0))
    return float(drafting / plain)


def _hidden(figures: Figures, requests: int, drafted: int) -> float:
    line = _loop(figures, requests, drafted)
    return float(line["tokens_s"] / line["serial_tokens_s"])


def _loop(figures: Figures, requests: int, drafted: int) -> Figures:
    return _line(figures["loop"]["8B"], requests=requests, drafted=drafted)


def _line(lines: list[Figures], **wanted: int) -> Figures:
    return [line for line in lines if wanted.items() <= line.items()][0]


def _gain(figures: Figures, batch: int) -> float:
    return max(float(line["gain"]) for line in figures["overlap"]["batches"][batch] if "gain" in line)
