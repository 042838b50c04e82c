"""`./paceline bench timeline FOLDER --out picture.png`: draw each node's busy times from the spans of a real run.

A deployment writes the spans with PACELINE_SPANS=FOLDER (`workers/tracing/sinks.py`). The upper panel shows the whole
run, the lower one a part of it in which single rounds can be seen; beside each node stands its busy fraction.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writes files; no window is opened
from matplotlib import pyplot

from bench.help import parser as parser_of

ROWS = ("verify", "draft", "fuse", "control")  # from the top
COLOURS = {"verify": "#1f5fa8", "draft": "#d9822b", "fuse": "#4f9d4f", "control": "#888888"}
SHORTEST_S = 0.0002  # least width drawn, so that a look into an empty mailbox can be seen
DPI = 110


@dataclass(frozen=True, slots=True)
class Span:
    """A node's piece of work, in seconds of the wall clock."""

    node: str
    kind: str
    start_s: float
    end_s: float
    sequences: int


def main(argv: Listed[str] | None = None) -> int:
    """Draw the picture, print busy fractions; return the exit status."""
    args = parse_args(argv)
    spans = read(args.folder)
    if not spans:
        print(f"no spans in {args.folder}: was the deployment started with PACELINE_SPANS?", file=sys.stderr)
        return 1
    spans = active(spans)
    first_s, last_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
    zoom_s = first_s + (args.start if args.start is not None else 0.5 * max(0.0, last_s - first_s - args.seconds))
    draw(spans, [(first_s, last_s), (zoom_s, min(last_s, zoom_s + args.seconds))], args.out)
    for node, part in busy(spans, first_s, last_s).items():
        print(f"{node:12s} busy {part:6.1%} of {last_s - first_s:.2f} s")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench timeline", __doc__)
    parser.add_argument("folder", type=Path, help="what PACELINE_SPANS named")
    parser.add_argument("--out", type=Path, default=Path("timeline.png"), help="picture to write")
    parser.add_argument("--start", type=float, help="where the lower panel begins, in seconds (default: the middle)")
    parser.add_argument("--seconds", type=float, default=0.6, help="what the lower panel shows")
    return parser.parse_args(argv)


def read(folder: Path) -> list[Span]:
    """Read all spans of a folder, by start; leave out lines cut short by a kill."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(Span(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return sorted(found, key=lambda span: span.start_s)


def active(spans: Listed[Span]) -> list[Span]:
    """Keep the spans from the first to the last work on sequences; the others are waits for requests."""
    working = [span for span in spans if span.sequences]
    if not working:
        return [*spans]
    first_s, last_s = min(span.start_s for span in working), max(span.end_s for span in working)
    return [span for span in spans if span.start_s < last_s and span.end_s > first_s]


def busy(spans: Iterable[Span], first_s: float, last_s: float) -> dict[str, float]:
    """Return each node's busy fraction between two times, seconds; a node's spans do not overlap."""
    seconds: dict[str, float] = {}
    for span in spans:
        inside_s = max(0.0, min(span.end_s, last_s) - max(span.start_s, first_s))
        seconds[span.node] = seconds.get(span.node, 0.0) + inside_s
    length_s = max(last_s - first_s, 1e-9)
    return {node: value / length_s for node, value in seconds.items()}


def draw(spans: Listed[Span], windows: Listed[tuple[float, float]], out: Path) -> None:
    """Draw one panel a window, one line a node, into a PNG file."""
    kinds = {span.node: span.kind for span in spans}
    nodes = sorted(kinds, key=lambda node: (ROWS.index(kinds[node]) if kinds[node] in ROWS else len(ROWS), node))
    height = 0.8 + len(windows) * (0.5 + 0.36 * len(nodes))
    figure, axes = pyplot.subplots(len(windows), 1, figsize=(11, height), squeeze=False, layout="constrained")
    origin_s = min(span.start_s for span in spans)
    for panel, (first_s, last_s) in zip(axes[:, 0], windows, strict=True):
        parts = busy(spans, first_s, last_s)
        for span in spans:
            if span.end_s > first_s and span.start_s < last_s:
                bar = span.start_s - origin_s, max(SHORTEST_S, span.end_s - span.start_s)
                panel.broken_barh([bar], (nodes.index(span.node) - 0.4, 0.8), color=COLOURS.get(span.kind), linewidth=0)
        labels = [f"{node}  {parts.get(node, 0.0):4.0%}" for node in nodes]
        panel.set_yticks(range(len(nodes)), labels, family="monospace")
        panel.set_ylim(len(nodes) - 0.5, -0.5)
        panel.set_xlim(first_s - origin_s, last_s - origin_s)
        panel.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes[-1, 0].set_xlabel("seconds")
    figure.savefig(out, dpi=DPI)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
