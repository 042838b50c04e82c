"""Check what the documents say against files: links, figures of tables, cited results."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.config import ROOT

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
    *sorted((ROOT / "lab").rglob("*.md")),
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ARMS = {
    "transformers `generate`": "transformers",
    "in one process, plain": "local_off",
    "in one process, speculation": "local_on",
    "deployment, plain": "server_off",
    "deployment, speculation": "server_on",
}


def anchors(text: str) -> set[str]:
    """The names that a page's headings have, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in LINK.findall(path.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{path.name}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{path.name}: {link}"


def test_every_decision_is_listed() -> None:
    listed = LINK.findall((ROOT / "docs" / "decisions" / "README.md").read_text())
    assert listed == sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))


def test_every_result_is_cited() -> None:
    texts = "".join(path.read_text() for path in DOCUMENTS)
    assert [path.name for path in (ROOT / "bench" / "results").iterdir() if path.name not in texts] == []


def test_rates_are_those_of_the_results() -> None:
    at = results("cpu")["concurrency"]
    rows = re.findall(r"^\| (\d+) \| (.+?) \| ([\d.]+) \| *(\d*) *\| *([\d.]*) *\|$", benchmarks(), flags=re.M)
    assert len(rows) == 15
    for n, name, rate, first_ms, tokens in rows:
        arm = at[n][ARMS[name]]
        assert float(rate) == pytest.approx(arm["tokens_per_s"], abs=0.051), (n, name)
        assert not first_ms or float(first_ms) == pytest.approx(1e3 * arm["ttft_s"], abs=0.51), (n, name)
        assert not tokens or float(tokens) == pytest.approx(arm["tokens_per_round"], abs=0.0051), (n, name)


def test_bars_are_those_of_the_results() -> None:
    bars = results("cpu")["bars"]
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \| (?:\*\*)?(yes|no)(?:\*\*)? \|$", benchmarks(), flags=re.M)
    assert [name for name, *_ in rows] == list(bars)
    for name, measured, least, holds in rows:
        bar = bars[name]
        assert float(measured) == pytest.approx(bar["measured"], abs=0.0051), name
        assert (float(least), holds == "yes") == (bar["at_least"], bar["holds"]), name


def test_rivals_rates_are_those_of_the_results() -> None:
    found = results("peers")["concurrency"]
    rates = [rate for n in ("1", "8") for rate in found[n]["tokens_per_s"].values()]
    table = benchmarks().split("\n## Beside rivals")[1].split("**Where")[0]
    rows = "".join(re.findall(r"^\|.*\|$", table, flags=re.M))
    assert set(rates) <= {float(number) for number in re.findall(r"\d+\.\d", rows)}


def test_figures_of_the_readme_are_in_the_benchmarks() -> None:
    table = readme().split("\n## Measured")[1].split("\n## ")[0]
    rows = re.findall(r"^\| .+ \| (.+?) \|$", table, flags=re.M)[1:]
    figures = {figure for row in rows for figure in re.findall(r"\d+\.\d+", row)}
    assert len(rows) >= 8 and len(figures) >= 12
    assert figures <= set(re.findall(r"\d+\.\d+", benchmarks()))


def test_readme_is_short() -> None:
    assert len(readme().splitlines()) <= 200


def readme() -> str:
    return (ROOT / "README.md").read_text()


def benchmarks() -> str:
    return (ROOT / "docs" / "benchmarks.md").read_text()


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    return found


ROW = re.compile(r"^\| (\d+) \| `([\w/]+\.py)` \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
REACHED = re.compile(r"HTTP|(?:call|callback|Redis|task [\w.]+) from (\d+)")


def definitions(file: str) -> dict[str, ast.FunctionDef]:
    """A module's functions, nested ones too, and its classes' methods as Class.method."""
    found: dict[str, ast.FunctionDef] = {}
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.ClassDef):
            found.update({f"{node.name}.{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)})
    return found


def called(function: ast.FunctionDef) -> set[str]:
    """The last names of all that a function calls."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def test_the_walk_through_the_code_is_true() -> None:
    """docs/architecture.md: each function exists, and is called by the row that it names."""
    rows = ROW.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(rows) >= 20 and len({file for _, file, _, _ in rows}) <= 21
    functions: dict[str, list[ast.FunctionDef]] = {}
    for step, file, names, reached in rows:
        known = definitions(file)
        wanted = re.findall(r"`([\w.]+)`", names)
        assert set(wanted) <= known.keys(), f"row {step}: {set(wanted) - known.keys()} not in {file}"
        functions[step] = [known[name] for name in wanted]
        match = REACHED.fullmatch(reached.strip())
        assert match, f"row {step} is reached by {reached!r}"
        if reached.startswith("call "):
            first = wanted[0].rpartition(".")[2]
            calls = set().union(*(called(one) for one in functions[match.group(1)]))
            assert first in calls, f"row {step}: {first} is not called by row {match.group(1)}"
