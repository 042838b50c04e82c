"""Test that the times of a deployed result are found again by a fit, over a small recording made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from lab.fit import fitted, place_of
from lab.load import Block, Load
from lab.report import figures, fingerprint
from lab.simulate.log import Log
from lab.simulate.world import Setting
from lab.simulated import SimulatedRunner, prompts_of
from lab.ways import OFF, WAYS
from tests.lab.simulate.made import made_log

TRUE = Setting(
    streams=1, hop_s=0.002, nodes=(("coder",), ("writer",)), cores=1, is_hub=True, slowdown=1.5, host_s=0.003,
    trees_s=0.0015, mail_s=0.001,
)  # fmt: skip
NAMES = (OFF, "vanilla", "specinfer")


@pytest.fixture
def log() -> Log:
    return made_log()


@pytest.fixture
def blocks(log: Log) -> list[Block]:
    return Load(prompts=1, warm_up=1, blocks=1, streams=1).of(prompts_of(log))


def measured(log: Log, blocks: list[Block]) -> dict[str, Any]:
    """Return the result of a deployment that takes these times."""
    runners = {name: SimulatedRunner(WAYS[name], log, TRUE) for name in NAMES}
    ends = {name: [runner.run(block) for block in blocks][1:] for name, runner in runners.items()}
    found = figures(blocks[1:], ends, [OFF])
    return {
        "place": {"nodes": TRUE.nodes, "hop_ms": 1e3 * TRUE.hop_s},
        "fingerprint": fingerprint(ends[OFF]),
        "ways": {name: {**found[name], **runners[name].report()} for name in NAMES},
    }


def test_the_times_of_a_deployment_are_found(log: Log, blocks: list[Block]) -> None:
    like = measured(log, blocks)
    found = fitted(log, like, place_of(like, 1), blocks)
    assert replace(found, slowdown=0, host_s=0, trees_s=0, mail_s=0) == replace(
        TRUE, slowdown=0, host_s=0, trees_s=0, mail_s=0
    ), "the same place"
    assert found.slowdown == pytest.approx(TRUE.slowdown, rel=0.01)
    assert found.host_s == pytest.approx(TRUE.host_s, rel=0.05)
    assert found.mail_s == pytest.approx(TRUE.mail_s, rel=0.25)
    assert found.trees_s + found.mail_s == pytest.approx(TRUE.trees_s + TRUE.mail_s, rel=0.25)


def test_a_result_of_other_texts_is_refused(log: Log, blocks: list[Block]) -> None:
    like = {**measured(log, blocks), "fingerprint": ""}
    with pytest.raises(SystemExit, match="other texts"):
        fitted(log, like, place_of(like, 1), blocks)
