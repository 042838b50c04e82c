"""Write the testbeds' figures as Markdown tables."""

from collections.abc import Mapping
from typing import Any

from lab.testbeds.figures import Figures
from lab.ways import OFF


def arms_table(load: str, rows: Mapping[str, Figures]) -> str:
    base = rows[OFF]
    names = ("arm", "a request, s", "ms a token", "tokens/s", "/ off", "tokens a round", "drafted", "rejected")
    lines = [load, *_head(*names, "a million tokens", "tokens/s over peak compute, / off")]
    for name, row in rows.items():
        over = row.tokens_per_s / base.tokens_per_s
        cells = [f"{row.request_s:.2f}", f"{1e3 * row.token_s:.1f}", f"{row.tokens_per_s:.1f}", f"{over:.2f}"]
        cells += [f"{row.tokens_a_round:.2f}", f"{row.drafted:.2f}", f"{row.rejected:.0%}", f"{row.cost:.2f}"]
        cells.append(f"{over * base.peak_flops / row.peak_flops:.2f}")
        lines.append(_row(f"{name} ({row.chosen})" if row.chosen else name, *cells))
    return "\n".join(lines) + "\n"


def quotients_table(name: str, cell: Mapping[str, Any]) -> str:
    """Return a cell's quotients; `cell`: as `lab.testbeds.suite.run_cell` has it."""
    lines = [f"{name} ({cell['process_s']:.0f} s)", *_head("quotient", "mean", "bounds of 95 %")]
    for quotient, own in cell["quotients"].items():
        mean, lower, upper = own["mean_and_bounds"]
        lines.append(_row(quotient, f"{mean:.3f}", f"{lower:.3f} to {upper:.3f}"))
    return "\n".join(lines) + "\n"


def summary_table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [*_head("quotient", "cells", "least lower bound", "least", "median")]
    for quotient, own in found.items():
        lines.append(
            _row(quotient, f"{own['cells']}", *(f"{own[at]:.3f}" for at in ("least_lower", "least", "median")))
        )
    return "\n".join(lines) + "\n"


def bands_table(name: str, found: Mapping[str, Any]) -> str:
    """Return a reading's bands and verdicts; `found`: as `lab.testbeds.comparisons.bands` has it, and the worlds."""
    lines = [
        f"### {name}\n",
        f"Worlds: {', '.join(found['worlds'])}.\n",
        *_head("figure", "least", "median", "most"),
        *(_row(one, *(f"{own[at]:.2f}" for at in ("low", "median", "high"))) for one, own in found["bands"].items()),
        "",
        *_head("headline", "paper", "band", "without 1", "narrow", "holds it", "reproduced"),
        *(_row(one, *_verdict(own)) for one, own in found["verdicts"].items()),
        f"\nOrder {' > '.join(found['order']['falling'])}: in {found['order']['part']:.0%} of the worlds.",
    ]
    return "\n".join(lines) + "\n"


def _verdict(own: Mapping[str, Any]) -> tuple[str, ...]:
    answers = ("yes" if own[kind] else "no" for kind in ("excludes 1", "narrow", "holds", "reproduced"))
    return f"{own['paper']:.2f}", f"{own['low']:.2f} to {own['high']:.2f}", *answers


def _head(*names: str) -> tuple[str, str]:
    return _row(*names), "|---" * len(names) + "|"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
