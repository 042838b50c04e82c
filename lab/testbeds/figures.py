"""`./paceline bench testbeds figures`: draw the bands of each paper's figures, beside the paper's numbers.

Reads what `--fitted` wrote. A panel for each reading of the paper's baselines: a bar from the 5 to the 95 % point over
worlds, its median, and a diamond where the paper states a headline.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # writes files; no window is opened
from matplotlib import pyplot

ROW_INCHES, WIDTH_INCHES, DPI = 0.26, 9.0, 110
BAND, NUMBER = "#1f5fa8", "#d9822b"


def draw(results: Path, pictures: Path, papers: tuple[str, ...]) -> list[Path]:
    """Draw a picture for each of these papers; return the files. Raises FileNotFoundError where no study was run."""
    return [
        picture(paper, json.loads((results / f"testbeds-{paper}-fitted.json").read_text())["readings"], pictures)
        for paper in papers
    ]


def picture(paper: str, readings: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Draw a paper's readings, one panel each, into `testbeds-PAPER.png`."""
    counts = [len(one["bands"]) for one in readings.values()]
    figure, axes = pyplot.subplots(
        len(counts),
        1,
        figsize=(WIDTH_INCHES, ROW_INCHES * sum(counts) + 1.1 * len(counts)),
        squeeze=False,
        gridspec_kw={"height_ratios": counts},
    )
    for panel, (name, reading) in zip(axes[:, 0], readings.items(), strict=True):
        _panel(panel, reading)
        panel.set_title(f"{paper}, {name}: {len(reading['worlds'])} worlds", fontsize=10, loc="left")
    axes[0, 0].legend(loc="best", fontsize=8)
    figure.tight_layout()
    path = folder / f"testbeds-{paper}.png"
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
    return path


def _panel(panel: Any, reading: Mapping[str, Any]) -> None:
    names = [*reading["bands"]]
    for row, name in enumerate(names):
        own = reading["bands"][name]
        label = "5 to 95 % over worlds, median" if row == 0 else None
        panel.plot(
            [own["low"], own["high"]],
            [row, row],
            color=BAND,
            linewidth=5,
            alpha=0.5,
            solid_capstyle="butt",
            label=label,
        )
        panel.plot(own["median"], row, "o", color=BAND, markersize=4)
    stated = [(one["paper"], names.index(name)) for name, one in reading["verdicts"].items() if name in names]
    panel.plot([at for at, _ in stated], [row for _, row in stated], "D", color=NUMBER, label="the paper's headline")
    panel.axvline(1.0, color="#888888", linewidth=0.8)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.invert_yaxis()
    panel.tick_params(axis="x", labelsize=8)
