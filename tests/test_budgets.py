"""Hold the budgets of budgets.toml: lines of Python by folder, words of pages and of docstrings.

What is over its budget is reported; more than a tenth over it fails. Work that brings something raises a line
once, by what it brings.
"""

import ast
import re
import subprocess
import tomllib
import warnings
from typing import Any

import pytest

from app.config import ROOT

BUDGETS: dict[str, Any] = tomllib.loads((ROOT / "tests" / "budgets.toml").read_text(encoding="utf-8"))
SERVING = ("app", "workers", "web", "kernels")
TENTH = 1.1


def listed(*patterns: str) -> list[str]:
    """The files of the clone that match."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        pytest.skip("not a clone")
    return [name for name in found if (ROOT / name).is_file()]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def lines_by_folder() -> dict[str, int]:
    """Lines of Python by the longest folder that has a budget; those of none stand under `elsewhere`."""
    found = dict.fromkeys([*BUDGETS["lines"], "elsewhere"], 0)
    for name in listed("*.py"):
        own = [folder for folder in BUDGETS["lines"] if name.startswith(f"{folder}/")]
        found[max(own, key=len, default="elsewhere")] += len(text_of(name).splitlines())
    return found


def prose(page: str) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def words(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.split())


def check(found: dict[str, int], budgets: dict[str, int]) -> None:
    """Warn of what is over its budget, and fail for what is more than a tenth over it."""
    over = {name: (count, budgets.get(name, 0)) for name, count in found.items() if count > budgets.get(name, 0)}
    if over:
        warnings.warn(f"over budget (is, may be): {over}", BudgetWarning, stacklevel=2)
    assert {name: pair for name, pair in over.items() if pair[0] > TENTH * pair[1]} == {}


class BudgetWarning(UserWarning):
    """A folder or a page is over its budget."""


pytestmark = pytest.mark.filterwarnings("default::tests.test_budgets.BudgetWarning")


def test_lines_of_each_folder() -> None:
    found = lines_by_folder()
    assert found.pop("elsewhere") == 0, "Python outside the folders that have a budget"
    check(found, BUDGETS["lines"])


def test_lines_of_parts() -> None:
    """Serving, experiments, tests: sums of the folders."""
    found = lines_by_folder()
    sums = {
        part: sum(n for folder, n in found.items() if folder.split("/")[0] in of["folders"])
        for part, of in BUDGETS["parts"].items()
    }
    check(sums, {part: of["lines"] for part, of in BUDGETS["parts"].items()})


def test_words_of_each_page() -> None:
    pages = {name: words(prose(text_of(name))) for name in listed("*.md") if not name.startswith("drafters/")}
    decisions = {name: n for name, n in pages.items() if name.startswith("docs/decisions/")}
    pages = {name: n for name, n in pages.items() if name not in decisions} | {
        "docs/decisions": sum(decisions.values())
    }
    check(pages, BUDGETS["words"])


def test_numbers_in_prose() -> None:
    """A page's numbers stand in tables."""
    crowded = {}
    for name in listed("README.md", "docs/*.md", "docs/decisions/*.md"):
        text = "\n".join(line for line in prose(text_of(name)).splitlines() if not re.match(r"\s*(\||\d+\. )", line))
        text = re.sub(r"\]\([^)]*\)|^#.*$", "", text, flags=re.MULTILINE)
        numbers = len(re.findall(r"(?<![\w.])\d[\d,.]*", text))
        if numbers > BUDGETS["numbers_per_100_words"] / 100 * max(words(text), 100):
            crowded[name] = round(100 * numbers / words(text), 1)
    assert crowded == {}


def test_words_of_docstrings() -> None:
    """Docstrings say what name and signature cannot."""
    lines, count = 0, 0
    for name in listed(*(f"{top}/*.py" for top in SERVING)):
        text = text_of(name)
        lines += len(text.splitlines())
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        count += sum(words(ast.get_docstring(n) or "") for n in ast.walk(ast.parse(text)) if isinstance(n, nodes))
    check({"words": round(1000 * count / lines)}, {"words": BUDGETS["docstring_words_per_1000_lines"]})
