"""Write the testbeds' figures as Markdown tables."""

from collections.abc import Mapping
from collections.abc import Sequence as Listed
from typing import Any

from lab.testbeds.figures import Figures
from lab.ways import OFF


def drafts_table(found: Mapping[str, Mapping[str, float]], length: int) -> str:
    """Return the drafters' tokens a round by domain."""
    domains = sorted({domain for own in found.values() for domain in own})
    lines = [
        f"Tokens a round of {length} drafted, by drafter and domain (any: a guess of any drafter is right)",
        *_head("drafter", *domains),
        *(_row(name, *(f"{own[domain]:.2f}" for domain in domains)) for name, own in found.items()),
    ]
    return "\n".join(lines) + "\n"


def arms_table(load: str, rows: Mapping[str, Figures]) -> str:
    """Return one load's means by arm."""
    base = rows[OFF]
    lines = [
        load,
        *_head(
            "arm",
            "a request, s",
            "ms a token",
            "tokens/s",
            "/ off",
            "tokens a round",
            "drafted",
            "rejected",
            "a million tokens",
            "tokens/s over peak compute, / off",
        ),
    ]
    for name, row in rows.items():
        efficiency = row.tokens_per_s / row.peak_flops * base.peak_flops / base.tokens_per_s
        lines.append(
            _row(
                f"{name} ({row.chosen})" if row.chosen else name,
                f"{row.request_s:.2f}",
                f"{1e3 * row.token_s:.1f}",
                f"{row.tokens_per_s:.1f}",
                f"{row.tokens_per_s / base.tokens_per_s:.2f}",
                f"{row.tokens_a_round:.2f}",
                f"{row.drafted:.2f}",
                f"{row.rejected:.0%}",
                f"{row.cost:.2f}",
                f"{efficiency:.2f}",
            )
        )
    return "\n".join(lines) + "\n"


def compared_table(paper: Mapping[str, str], loads: Listed[str], found: Mapping[str, Listed[float | None]]) -> str:
    """Return the quotients beside the paper's figures."""
    lines = [
        "Quotients, beside what the paper reports (no verdict: see `--fitted`)",
        *_head("figure", "paper", *loads),
        *(
            _row(name, paper.get(name, ""), *("" if value is None else f"{value:.2f}" for value in values))
            for name, values in found.items()
        ),
    ]
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
        *(
            _row(
                one,
                f"{own['paper']:.2f}",
                f"{own['low']:.2f} to {own['high']:.2f}",
                *("yes" if own[kind] else "no" for kind in ("excludes 1", "narrow", "holds", "reproduced")),
            )
            for one, own in found["verdicts"].items()
        ),
        f"\nOrder {' > '.join(found['order']['falling'])}: in {found['order']['part']:.0%} of the worlds.",
    ]
    return "\n".join(lines) + "\n"


def _head(*names: str) -> tuple[str, str]:
    return _row(*names), "|---" * len(names) + "|"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
