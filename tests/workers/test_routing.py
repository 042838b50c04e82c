"""Test two drafter nodes with a drafter each on the default target: routed jobs, the same text."""

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from app.config import ROOT
from tests.workers.cluster import Cluster, wait_for

PROMPTS = (
    "Write a Python class for a stack with push, pop and peek.",
    "Write a Python function that reverses a list.",
    "Count from one to twenty in words.",
)
SHIPPED, COPY = "smol-general", "smol-copy"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Copy the packaged drafter under another name."""
    return Path(shutil.copytree(ROOT / "drafters" / SHIPPED, tmp_path / COPY))


@pytest.fixture
def two_nodes(real: Cluster, copied: Path) -> Iterator[Cluster]:
    """Run a second drafter node beside the deployment's own."""
    real.await_ready()
    worker = real.start_worker("draft", "draft-2", PACELINE_DRAFTERS=str(copied))
    try:
        wait_for(lambda: "draft-2" in real.status().nodes, what="the second drafter node")
        yield real
    finally:
        worker.terminate()
        worker.wait(30)
    real.await_ready()


def ask(cluster: Cluster, prompt: str, speculation: bool | dict[str, object]) -> list[int]:
    answer = cluster.post({"prompt": prompt, "max_tokens": 80, "speculation": speculation})
    return list(answer["token_ids"])


@pytest.mark.extended
def test_jobs_are_routed_over_two_nodes_and_the_text_is_exact(two_nodes: Cluster) -> None:
    for prompt in PROMPTS:
        assert ask(two_nodes, prompt, speculation=True) == ask(two_nodes, prompt, speculation=False)
    seen = ask_until(two_nodes, lambda: two_nodes.status().nodes["verify-1"]["asked_rounds"], "rounds with a choice")
    print(f"asked rounds: {seen}")
    assert set(seen) <= {SHIPPED, COPY}


def ask_until(cluster: Cluster, condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition`, sending requests until then.

    Under load tables alone often draft, and models are asked rarely: a wait alone could be in vain.
    """
    numbers = count()

    def found() -> Any:
        if not (value := condition()):
            ask(cluster, f"{PROMPTS[0]} (Question {next(numbers)}.)", speculation={"drafters": [SHIPPED, COPY]})
        return value

    return wait_for(found, what=what)
