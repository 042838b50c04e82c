"""Test the parts of `lab cooperate`: its arms as settings, its trees, its figures."""

import pytest
import torch
from torch import nn

from app.messages import TreeMessage
from lab.cooperate.peers import SpreadHead
from lab.cooperate.report import bars, figures, table
from lab.cooperate.run import check_same, groups
from lab.cooperate.systems import Run, TimedTarget, lone
from lab.cooperate.variants import (
    FULL,
    OFF,
    Variant,
    fixed,
    pilot,
    titled,
    variants,
)
from tests import fakes

#       a (both) - b (one) - c (one)
#       d (other) - e (other)
TREE = TreeMessage(
    request_id="r",
    base=5,
    tokens=(1, 4, 2, 3, 5),
    parents=(0, 0, 1, 3, 2),
    survival=(0.6, 0.45, 0.3, 0.2, 0.1),
    proposers=(("one", "other"), ("other",), ("one",), ("one",), ("other",)),
)


def run(seconds: float, tokens: int = 10, rounds: int = 5) -> Run:
    ids = (tuple(range(tokens)),)
    return Run(seconds, ids, (0.1,), (seconds,), rounds, rounds - 1, 3, rounds, seconds, 0.2, 0.3, {"one": (8, 4)})


def test_a_tree_without_fusion_is_one_drafters_own() -> None:
    kept = lone(TREE)
    assert (kept.tokens, kept.parents) == ((1, 4, 5), (0, 0, 2)), "the other promises 1.15 tokens, the one 1.1"
    assert set(kept.proposers) == {("other",)}


def test_a_fixed_length_is_a_setting() -> None:
    assert fixed("one", 3).settings == {"plan": "vanilla", "lengths": "fixed:3"}
    assert Variant(FULL).settings == {}


def test_an_arm_whose_setting_is_not_there_is_named() -> None:
    assert Variant("x", {"no_such": 1, "weights": "float32"}).missing() == ["no_such"]
    assert Variant("x", {"weights": "no such value"}).missing() == ["weights"]
    assert Variant("x").missing() == []


def test_every_arm_of_the_comparison_is_planned_once() -> None:
    names = [variant.name for variant in variants(fixed("one", 3), "one")]
    assert len(set(names)) == len(names)
    assert {OFF, FULL, "best single", "generalist", "lookup only", "tables only"} <= set(names)
    assert {"vanilla", "specinfer", "cosine", "faser", "cosine without sharing"} <= set(names)
    assert {name for name in names if name.startswith("without")} == {
        "without routing", "without fusion", "without run-ahead", "without suffix",
        "without phrases",
    }  # fmt: skip
    assert len(pilot(["one", "two"])) == 12


def test_groups_hold_prompts_of_one_domain() -> None:
    prompts = {"code": ["a", "b", "c"], "prose": ["d"]}
    assert groups(prompts, 2) == [("code", ["a", "b"]), ("code", ["c"]), ("prose", ["d"])]
    assert groups(prompts, 0) == [("all", ["a", "b", "c", "d"])]


def test_other_tokens_are_no_figures() -> None:
    with pytest.raises(SystemExit, match="wrong"):
        check_same({OFF: run(1.0), "wrong": run(1.0, tokens=9)})


def test_an_arm_of_a_paper_that_hardly_asked_models_is_marked() -> None:
    assert titled("cosine", 0.56) == "cosine (models in 56% of rounds)"
    assert titled("cosine, batches in flight", 0.0) == "cosine, batches in flight (models in 0% of rounds)"
    assert titled("faser without overlap", 0.9) == "faser without overlap"
    assert titled("pace without tables", 0.1) == "pace without tables", "no paper's"


def test_figures_pair_runs_of_the_same_prompts() -> None:
    measured = [("code", ["a"]), ("code", ["b"]), ("prose", ["c"])]
    runs = {OFF: [run(2.0), run(4.0), run(2.0)], FULL: [run(1.0), run(2.0), run(2.0)]}
    found = figures(runs, measured)
    assert found["ratios"][f"{FULL} / {OFF}"]["code"]["mean"] == pytest.approx(2.0)
    assert found["ratios"][f"{FULL} / {OFF}"]["prose"]["mean"] == pytest.approx(1.0)
    assert found["arms"][FULL]["accepted_length"] == 2.0
    assert found["arms"][FULL]["texts_differ"] == 0
    assert found["acceptance"][FULL] == {"code": {"one": 0.5}, "prose": {"one": 0.5}}
    assert "| full | 5.0 | 2.00 | 2.00 | 75% | 40.0 / 60.0 / 233.33 | 7.5 | 5.0 |" in table(found)
    found_bars = bars({"1": found})
    assert found_bars[f"{FULL} / {OFF}, mean over the domains"] == {
        "measured": 1.587,
        "at_least": 1.5,
        "holds": True,
    }


def test_the_steps_that_a_verifier_makes_are_timed() -> None:
    inner = fakes.served()
    timed = TimedTarget(inner)
    pipeline = fakes.pipeline(timed)
    fakes.submit(pipeline, fakes.record([1, 2, 3], max_tokens=4))
    rounds = 0
    while pipeline.verifier.sequences:
        pipeline.step()
        rounds += 1
    assert 4 <= timed.calls <= rounds and timed.seconds > 0.0
    assert timed.pool is inner.pool, "all else is the inner one's"


def test_a_spread_head_gives_every_token_of_the_vocabulary() -> None:
    head = nn.Linear(4, 2, bias=False)
    hidden = torch.randn(1, 3, 4)
    logits = SpreadHead(head, torch.tensor([5, 1]), 7)(hidden)
    assert logits.shape == (1, 3, 7)
    assert torch.equal(logits[..., [5, 1]], head(hidden))
    assert torch.isinf(logits[..., [0, 2, 3, 4, 6]]).all()
