"""Test two drafter nodes with a drafter each on the default target: routed jobs, the same text."""

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

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


def test_jobs_are_routed_over_two_nodes_and_the_text_is_exact(two_nodes: Cluster) -> None:
    for prompt in PROMPTS:
        assert ask(two_nodes, prompt, speculation=True) == ask(two_nodes, prompt, speculation=False)
    seen = wait_for(lambda: two_nodes.status().nodes["verify-1"]["asked_rounds"], 10, "rounds with a choice")
    print(f"asked rounds: {seen}")
    assert set(seen) <= {SHIPPED, COPY}
    found = wait_for(lambda: _calibration(two_nodes), 10, "a calibration in the status")
    print(f"calibration: {found}")
    assert all(0.0 <= own["calibrated_error"] <= 1.0 and own["observations"] > 0 for own in found.values())
    with_redis = two_nodes.deployment()
    try:
        wait_for(lambda: with_redis.shared_stats.load("calibration"), 10, "the calibration in Redis")
        numbers = count()

        def public() -> object:
            """Send a request; return the public experience, which takes 32 tokens of models, rare under load."""
            ask(two_nodes, f"{PROMPTS[0]} (Question {next(numbers)}.)", speculation={"drafters": [SHIPPED, COPY]})
            return with_redis.shared_stats.load("experience:public")

        wait_for(lambda: with_redis.shared_stats.load("experience:public") or public(), 60, "the experience in Redis")
    finally:
        with_redis.close()


def _calibration(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Return the calibration of the model drafters, as any node that fuses reports it."""
    nodes = cluster.status().nodes.values()
    known = [own for node in nodes for own in node.get("calibration", {}).items()]
    return {name: report for name, report in known if name in (SHIPPED, COPY)}
