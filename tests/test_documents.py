"""Check what the documents say against files: links, figures of tables, cited results."""

import ast
import itertools
import json
import re
from pathlib import Path
from statistics import geometric_mean, median
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
RESULTS = [ROOT / "bench" / "results", ROOT / "lab" / "results"]


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
    links = LINK.findall((ROOT / "docs" / "decisions" / "README.md").read_text())
    assert [link for link in links if link.startswith("0")] == sorted(
        path.name for path in (ROOT / "docs" / "decisions").glob("0*.md")
    )


def test_every_result_is_cited() -> None:
    texts = "".join(path.read_text() for path in DOCUMENTS)
    results = [path.name for folder in RESULTS if folder.is_dir() for path in folder.iterdir()]
    assert [name for name in results if name not in texts] == []


ARMS = {
    "transformers `generate`": "transformers",
    "in one process, plain": "local_off",
    "in one process, speculation": "local_on",
    "deployment, plain": "server_off",
    "deployment, speculation": "server_on",
}
PAIRS = {
    "in process, plain, over `generate`": "local_off / transformers",
    "in process, speculation over plain": "local_on / local_off",
    "deployment, speculation over plain": "server_on / server_off",
    "deployment over in process, plain": "server_off / local_off",
    "deployment over in process, speculation": "server_on / local_on",
}
ENGINES = {
    "plain": "paceline",
    "speculating": "paceline, speculating",
    "int8 rows, plain": "paceline int8",
    "int8 rows, speculating": "paceline int8, speculating",
}
WAYS = {
    "plain": "off",
    "best single model, best fixed length": "best single",
    "four models, no n-grams": "pace without tables",
    "n-grams alone": "tables only",
    "one model and n-grams (the default)": "generalist + tables",
    "four models and n-grams": "full",
    **{f"plan `{name}`": name for name in ("vanilla", "specinfer", "cosine", "faser")},
}


def test_rates_are_those_of_the_results() -> None:
    at = results("cpu")["concurrency"]
    rows = table("benchmarks.md", "first token, ms")
    assert len(rows) == 15
    for n, name, rate, first_ms, tokens in rows:
        arm = at[n][ARMS[name]]
        assert float(rate) == pytest.approx(arm["tokens_per_s"], abs=0.051), (n, name)
        assert not first_ms or float(first_ms) == pytest.approx(1e3 * arm["ttft_s"], abs=0.51), (n, name)
        assert not tokens or float(tokens) == pytest.approx(arm["tokens_per_round"], abs=0.0051), (n, name)


def test_ratios_are_those_of_the_results() -> None:
    found = results("cpu")
    rows = table("benchmarks.md", "tokens/s of")
    assert {name for name, *_ in rows} == PAIRS.keys()
    for name, *cells in rows:
        for n, cell in zip(("1", "4", "16"), cells, strict=True):
            assert cell == ratio(found["concurrency"][n]["ratios"][PAIRS[name]]), (n, name)
    (domains,) = table("benchmarks.md", "code")
    assert domains == [ratio(found["domains"][name]["on / off"]) for name in ("code", "math", "chat", "prose", "qa")]


def test_rivals_rates_are_those_of_the_results() -> None:
    found = results("peers")["concurrency"]
    for name, rate, over, rate_of_8, over_of_8 in table("benchmarks.md", "8 at once")[:-1]:
        key = ENGINES[name]
        for n, cells in (("1", (rate, over)), ("8", (rate_of_8, over_of_8))):
            wanted = (f"{found[n]['tokens_per_s'][key]:.1f}", ratio(found[n]["ratios"][f"{key} / llama.cpp"]))
            assert cells == wanted, (n, name)
    pair = results("peers-qwen")["concurrency"]["1"]
    for name, rate, over, over_drafting in table("benchmarks.md", "over llama.cpp with the draft model")[:4]:
        key = ENGINES[name]
        assert rate == f"{pair['tokens_per_s'][key]:.1f}"
        assert over == ratio(pair["ratios"][f"{key} / llama.cpp"])
        assert over_drafting == ratio(pair["ratios"][f"{key} / llama.cpp, speculating"])


def test_host_times_are_those_of_the_results() -> None:
    points = {(p["requests"], p["drafts"]): p for p in results("scale")["points"] if p["context"] == 100}
    rows = table("benchmarks.md", "of the ideal")
    assert len(rows) == len(points) == 8
    for requests, drafts, *cells in rows:
        point = points[int(requests), int(drafts)]
        wanted = (point["exposed_ms"], point["ideal"], point["cpu_us"]["verify"], point["tokens_per_s"])
        for cell, value in zip(cells, wanted, strict=True):
            assert float(cell.replace(",", "")) == pytest.approx(value, abs=0.0051 if "." in cell else 0.51)


def test_ways_of_drafting_are_those_of_the_results() -> None:
    rows = table("benchmarks.md", "Spec-Bench")
    assert {name for name, *_ in rows[:-1]} == WAYS.keys()
    for column, file in enumerate(("cooperate", "cooperate-spec-bench", "cooperate-humaneval"), 1):
        arms = results(file)["streams"]["1"]["arms"]
        for row in rows[:-1]:
            assert float(row[column]) == pytest.approx(arms[WAYS[row[0]]]["tokens_per_s"], abs=0.051), row


def test_rates_of_drafters_on_other_hosts_are_those_of_the_results() -> None:
    places = ("hosts", "hosts-four", "hosts-eight", "hosts-sixteen")
    for name, *cells in table("benchmarks.md", "8 | 16"):
        arm = "pace without tables" if "alone" in name else name.split("`")[1]
        for file, cell in zip(places, cells, strict=True):
            assert cell == ratio(results(file)["arms"][arm]["over off"]), (file, name)


def test_ratios_of_the_pair_beside_a_stated_target_are_those_of_the_results() -> None:
    files = [f"paced-pair-{sampled}{streams}" for sampled in ("", "sampled-") for streams in (1, 4, 16)]
    rows = table("benchmarks.md", "16, 0.8")
    assert {name.replace("`", "") for name, *_ in rows} | {"off"} == results(files[0])["ways"].keys()
    for name, *cells in rows:
        for file, cell in zip(files, cells, strict=True):
            mean, lower, _ = results(file)["ways"][name.replace("`", "")]["over"]["off"]
            assert cell == ratio({"mean": mean, "lower": lower}), (file, name)


def test_bands_of_the_papers_are_those_of_the_results() -> None:
    readings = results("testbeds-cosine-fitted")["readings"] | results("testbeds-faser-fitted")["readings"]
    rows = table("papers.md", "median")
    assert {reading for _, reading, *_ in rows} == readings.keys()
    for name, reading, *cells in rows:
        band = readings[reading]["bands"][name]
        assert cells == [f"{band[edge]:.2f}" for edge in ("low", "median", "high")], (reading, name)


def test_cells_of_the_suite_are_those_of_the_results() -> None:
    cells = results("testbeds-suite-faser")["cells"] | results("testbeds-suite-cosine")["cells"]
    groups = {"all 60 cells": "", "CoSine's 36": "co", "FASER's 24": "faser"}
    for name, *found in table("papers.md", "`pace` over plain"):
        own = [cell for place, cell in cells.items() if place.startswith(groups.get(name, name))]
        paper = "faser" if name[:5].lower() == "faser" else "cosine"
        quotients = ("pace over off", "pace over the best baseline", f"{paper} over the best baseline")
        for quotient, text in zip((*quotients, "cosine, depth tuned over the best baseline"), found, strict=True):
            every = [cell["quotients"].get(quotient) for cell in own]
            values = [one["mean_and_bounds"][0] for one in every if one is not None]
            if not text:
                continue
            wanted = [min(values), median(values), max(values)] if name in groups else values
            assert [float(one) for one in text.split(", ")] == pytest.approx(wanted, abs=0.051), name


def test_gains_over_the_best_single_drafter_are_those_of_the_results() -> None:
    rows = table("papers.md", "drafters | 1 stream")
    assert len(rows) == 5
    for _, *cells, file in rows:
        settings = results(file.strip("`").removesuffix(".json"))["settings"]
        for cell, setting in zip(cells, settings, strict=False):
            mean, low, high = setting["over"]["best single"]["cosine"]
            assert cell == f"{mean:.2f} ({low:.2f} to {high:.2f})", file


def test_gains_of_decision_12_are_those_of_the_results() -> None:
    arms = {
        "best single drafter, fixed length": "best single",
        "plan `cosine`": "cosine",
        "`pace`, models alone": "pace without tables",
        "`pace`": "full",
        "`pace`, n-grams alone": "tables only",
    }
    places = [("simulate", 0), ("simulate-int8", 0), *(("simulate-30ms", at) for at in range(3))]
    rows = table("decisions/0012-simulation.md", "way, streams")
    assert {name for name, *_ in rows} == arms.keys()
    for name, *cells in rows:
        for cell, (file, at) in zip(cells, places, strict=True):
            ways = results(file)["settings"][at]["ways"]
            gain = ways[arms[name]]["tokens_per_s"] / ways["off"]["tokens_per_s"]
            assert float(cell) == pytest.approx(gain, abs=0.0051), (name, file, at)


def test_loads_of_decision_14_are_those_of_the_results() -> None:
    found = [rate["arm / adaptive"] for rate in results("sweep")["rates"]]
    off, fixed, uniform = table("decisions/0014-steering.md", "requests/s | 2")
    assert off[1:] == [ratio(rate["off"]) for rate in found]
    assert uniform[1:] == [ratio(rate["uniform"]) for rate in found]
    best = [min((arm for name, arm in rate.items() if "fixed" in name), key=lambda arm: arm["mean"]) for rate in found]
    assert fixed[1:] == [ratio(arm) for arm in best]


def test_overlaps_of_decision_15_are_those_of_the_results() -> None:
    found = results("settings")["settings"]
    for name, *cells in table("decisions/0015-overlap.md", "model alone"):
        way, _, load = name.partition(", ")
        for cell, guess in zip(cells, (".1", ".25", ".5"), strict=True):
            own = found[f"pair {guess} at {load.removesuffix(' at once')}"][{"ahead": "models"}.get(way, way)]
            gain = geometric_mean(own["pace"]) / geometric_mean(own["off"])
            assert float(cell) == pytest.approx(gain, abs=0.0051), (name, guess)


def test_silences_of_the_failure_model_are_those_of_the_results() -> None:
    longest = {one["fault"]: one["longest_stall_s"] for one in results("chaos")["faults"]}
    rows = table("architecture.md", "silent")
    assert len(rows) == 17
    for what, _, fault, silent in rows:
        assert silent == (f"{longest[fault]:.1f}" if fault else ""), what


def test_figures_of_the_readme_are_in_the_benchmarks() -> None:
    measured = readme().split("\n## Measured")[1].split("\n## ")[0]
    figures = re.findall(r"\d+\.\d+", measured)
    assert len(figures) == 6
    assert set(figures) <= set(re.findall(r"\d+\.\d+", (ROOT / "docs" / "benchmarks.md").read_text()))


def readme() -> str:
    return (ROOT / "README.md").read_text()


def table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the first table of a page whose head line has this text."""
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    assert any(line.startswith("|") and head in line for line in lines), head
    next(lines)  # the line under the head
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
    assert rows, head
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def ratio(found: dict[str, float]) -> str:
    """Write a ratio with its lower bound as the tables have it."""
    return f"{found['mean']:.2f} ({found['lower']:.2f})"


def results(name: str) -> dict[str, Any]:
    path = next(folder / f"{name}.json" for folder in RESULTS if (folder / f"{name}.json").is_file())
    found: dict[str, Any] = json.loads(path.read_text())
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
