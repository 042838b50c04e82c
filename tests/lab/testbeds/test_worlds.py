"""Test the worlds of the papers' testbeds, and the roofline: closed forms, and arithmetic done by hand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.testbeds.arms import off
from lab.testbeds.fitted import read_fitted
from lab.testbeds.play import Load, play
from lab.testbeds.roofline import context_s, guess_s, kv_tokens, peak_flops, price_per_h, step_costs
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, WorldSpec, read_world, world_names

NAMES = [*world_names("cosine"), *world_names("faser")]


def world(name: str) -> WorldSpec:
    return read_world(FOLDER / f"{name}.json")


def changed(tmp_path: Path, **own: Any) -> Path:
    for name in ("cosine-70b", "faser-32b"):
        (tmp_path / f"{name}.json").write_text((FOLDER / f"{name}.json").read_text())
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"like": "cosine-70b", **own}))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_each_world_is_read(name: str) -> None:
    found = world(name)
    assert step_costs(found).seconds(1) > 0.0 and kv_tokens(found, found.drafters) > 10_000


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ({"hop_s": 0.001}, "hop_s"),
        ({"hop_s": [0.001]}, "hop_s"),
        ({"hop_s": [0.001, ""]}, "hop_s.1"),
        ({"hop_s": [-1, "assumed"]}, "hop_s.0"),
        ({"devices": {"a100": {"flops": [float("inf"), "assumed"]}}}, "devices.a100.flops"),
        ({"devices": {"a100": {"tflops": [312, "assumed"]}}}, "devices.a100.tflops"),
        ({"target": {"device": "b200"}}, "target.device: no device is named 'b200', only a100, rtx2080ti, rtx3090"),
        ({"target": {"bus": None, "tensor": [2, "assumed"]}}, "target.bus"),
        ({"drafters": {"physics": {"link": None}}}, "drafters.physics.link"),
    ],
)
def test_a_broken_world_is_refused_by_the_place(tmp_path: Path, own: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        read_world(changed(tmp_path, **own))


def test_a_world_is_like_another_but_for_its_own_leaves(tmp_path: Path) -> None:
    found = read_world(changed(tmp_path, target={"batches": [2, "assumed"]}, drafters={"mixture": None}))
    base = world("cosine-70b")
    assert found.target.batches.value == 2 and found.target.stages == base.target.stages
    assert set(base.drafters) - set(found.drafters) == {"mixture"}


def test_eight_fitted_worlds_have_their_own_values_and_facts_that_fit() -> None:
    found = read_fitted()
    assert len(found) == 8
    for one in found.values():
        base = world(one.like)
        own = base.with_values(one.values)
        assert own != base and one.load.data in base.loads
        assert own.target.host_s == (one.values["target.host_s"], "fitted")
        assert {each.host_s.value for each in own.drafters.values()} == {one.values["drafters.*.host_s"]}
        errors = [abs(figure - (low + high) / 2) / ((high - low) / 2) for figure, low, high in one.facts.values()]
        assert max(errors) == pytest.approx(one.fit_error, abs=0.01) and one.fit_error <= 1.0


def test_plain_steps_take_what_bytes_over_bandwidth_say() -> None:
    plain = {name: step_costs(world(name)).seconds(1) for name in NAMES}
    assert plain["faser-32b"] == pytest.approx(65.5e9 / (0.85 * 3.35e12) + 0.5e-3, rel=1e-6)
    assert plain["cosine-70b"] == pytest.approx(141.1e9 / (0.7 * 2.04e12) + 2e-3, rel=1e-3)
    assert plain["cosine-70b-tensor"] == pytest.approx(141.1e9 / 4 / (0.7 * 2.04e12) + 2e-3 + 160e-5, rel=1e-3)


def test_many_rows_take_what_operations_over_peak_say_and_all_rows_lie_on_the_roof() -> None:
    found, costs = world("faser-32b"), step_costs(world("faser-32b"))
    read_s, row_s = 65.5e9 / (0.85 * 3.35e12), 64e9 / (0.6 * 9.89e14)
    for rows in (1, 2, 100, 212, 213, 214, 500, 1792, 4096, 5000):
        assert costs.seconds(rows) == pytest.approx(max(read_s, rows * row_s) + 0.5e-3, rel=1e-9)
    tensor = step_costs(world("faser-70b")).seconds(1792)
    assert tensor == pytest.approx(1792 * 139e9 / 2 / (0.6 * 9.89e14) + 160 * 1e-5 + 0.188 + 0.5e-3, rel=1e-2)
    assert found.drafters.keys() == {"qwen3-0.6b"}


def test_memory_drafts_and_prices_are_those_of_the_arithmetic() -> None:
    faser, cosine = world("faser-32b"), world("cosine-70b")
    assert kv_tokens(faser, ()) == int((0.9 * 96e9 - 65.5e9) / 262144)
    assert kv_tokens(faser, faser.drafters) == int((0.9 * 96e9 - 65.5e9 - 1.19e9) / (262144 + 114688))
    assert 256 * 855 * context_s(faser, "qwen3-0.6b") == pytest.approx(256 * 855 * 114688 / (0.85 * 3.35e12))
    assert guess_s(faser, "qwen3-0.6b")[1] == pytest.approx(1.19e9 / (0.85 * 3.35e12) + 1.5e-3)
    assert guess_s(cosine, "medicine")[16] == pytest.approx(0.14e9 / (0.7 * 6.16e11) + 2e-3)
    experts = tuple(name for name in cosine.drafters if name != "mixture")
    nodes = peak_flops(cosine, experts) / peak_flops(cosine, ()) - 1.0
    assert nodes == pytest.approx((8 * 71 + 8 * 54) / (4 * 312)), "0.80 of the four devices of the target"
    assert price_per_h(cosine, experts) == pytest.approx(4 * 1.5 + 8 * 0.25 + 8 * 0.15)


def test_plain_decoding_at_a_batch_takes_exactly_what_the_roofline_says() -> None:
    for name, batch in (("faser-32b", 1), ("faser-32b", 24), ("cosine-70b-tensor", 4)):
        own, prompt, output = world(name), 4, 20
        log = made(own, [Wanted(own.domains[0], prompt, output)] * batch, 0)
        found = play(own, off(), log, Load("all at once", batch, batch, [0.0] * batch), 0)
        costs, host_s = step_costs(own), own.target.host_s.value
        contexts = [batch * (prompt + i) for i in range(output - 1)]  # cached when the next token is computed
        steps_s = [
            costs.seconds(batch) + costs.reading.token_s * tokens + costs.reading.row_token_s * tokens
            for tokens in contexts
        ]
        assert found.token_s * (output - 1) == pytest.approx(sum(steps_s) + host_s * (output - 1), rel=1e-6), name
        assert found.tokens_a_round == 1.0
