"""`./paceline bench timeline [REQUEST] --out picture.png`: draw which process worked on a request, and when.

The spans come from the timeline of the request that a running instance keeps in Redis (app/store/traces.py). The upper
panel shows the whole request, the lower one a part in which single rounds can be seen. The percentage beside a node is
the part of the panel's time in which it worked on the request.
"""

import argparse
import sys
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from contextlib import closing
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # writes files; no window is opened
from matplotlib import pyplot

from app.config import Settings
from app.errors import InstanceError, PacelineError
from app.local.instance import find
from app.store.connect import connect
from app.store.traces import Traces, TraceSpan, trace_name
from bench.help import parser as parser_of

ROWS = ("verify", "draft", "fuse")  # from the top
COLOURS = {"verify": "#1f5fa8", "draft": "#d9822b", "fuse": "#4f9d4f"}
SHORTEST_S = 0.0002  # least width drawn, so that a very short span can be seen
DPI = 110


def main(argv: Listed[str] | None = None) -> int:
    """Draw the picture, print busy fractions; return the exit status."""
    args = parse_args(argv)
    try:
        spans = read(args.instance, args.request)
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    first_s, last_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
    zoom_s = first_s + (args.start if args.start is not None else 0.5 * max(0.0, last_s - first_s - args.seconds))
    draw(spans, [(first_s, last_s), (zoom_s, min(last_s, zoom_s + args.seconds))], args.out)
    for node, part in busy(spans, first_s, last_s).items():
        print(f"{node:12s} busy {part:6.1%} of {last_s - first_s:.2f} s")
    return 0


def parse_args(argv: Listed[str] | None) -> argparse.Namespace:
    """Parse the command line; exit on a wrong one."""
    parser = parser_of("bench timeline", __doc__)
    parser.add_argument("request", nargs="?", help="id of a request of the last minutes (default: the latest)")
    parser.add_argument("--instance", metavar="NAME", help="a running instance; else the default one, or the only one")
    parser.add_argument("--out", type=Path, default=Path("timeline.png"), help="picture to write")
    parser.add_argument("--start", type=float, help="where the lower panel begins, in seconds (default: the middle)")
    parser.add_argument("--seconds", type=float, default=0.6, help="what the lower panel shows")
    return parser.parse_args(argv)


def read(instance: str | None, request_id: str | None) -> list[TraceSpan]:
    """Read a request's spans by their start, of the latest request if none is named. Raises InstanceError."""
    found, state = find(Settings.from_env().state, instance)
    if state is None:
        raise InstanceError(f"instance {found.name!r} is not running")
    with closing(connect(state.redis_url)) as client:
        traces = Traces(client, state.namespace)
        names = [*traces.recent(1)] if request_id is None else [trace_name(request_id)]
        spans = [span for name in names for span in traces.spans(name)]
    if not spans:
        what = "has no timelines yet" if request_id is None else f"has no timeline of request {request_id}"
        raise InstanceError(f"instance {found.name!r} {what}")
    return sorted(spans)


def busy(spans: Iterable[TraceSpan], first_s: float, last_s: float) -> dict[str, float]:
    """Return each node's busy fraction between two times, seconds; a node's spans do not overlap."""
    seconds: dict[str, float] = {}
    for span in spans:
        inside_s = max(0.0, min(span.end_s, last_s) - max(span.start_s, first_s))
        seconds[span.node] = seconds.get(span.node, 0.0) + inside_s
    length_s = max(last_s - first_s, 1e-9)
    return {node: value / length_s for node, value in seconds.items()}


def draw(spans: Listed[TraceSpan], windows: Listed[tuple[float, float]], out: Path) -> None:
    """Draw a panel for each window, with a row for each node, into a PNG file."""
    kinds = {span.node: span.kind for span in spans}
    nodes = sorted(kinds, key=lambda node: (ROWS.index(kinds[node]) if kinds[node] in ROWS else len(ROWS), node))
    height = 0.8 + len(windows) * (0.5 + 0.36 * len(nodes))
    figure, axes = pyplot.subplots(len(windows), 1, figsize=(11, height), squeeze=False, layout="constrained")
    origin_s = min(span.start_s for span in spans)
    for panel, (first_s, last_s) in zip(axes[:, 0], windows, strict=True):
        parts = busy(spans, first_s, last_s)
        for row, node in enumerate(nodes):
            bars = [
                (span.start_s - origin_s, max(SHORTEST_S, span.end_s - span.start_s))
                for span in spans
                if span.node == node and span.end_s > first_s and span.start_s < last_s
            ]
            panel.broken_barh(bars, (row - 0.4, 0.8), color=COLOURS.get(kinds[node], "#555555"), linewidth=0)
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
