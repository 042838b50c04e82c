"""Test the testbeds' suite, bands, arms and loads on small texts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.simulate.log import Log
from lab.testbeds import arms, run
from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.play import Load, loop, play, tuned
from lab.testbeds.suite import cells_of, place_of, quotients, read_suite, summary
from lab.testbeds.texts import Wanted, half, made, over_recording
from lab.testbeds.worlds import FOLDER, Number, WorldSpec, read_world

SUITE = """
seeds = [0, 1]
[papers.cosine]
own = ["cosine", "cosine, depth tuned"]
apart = ["specinfer, coupled", "pipeinfer", "pipeinfer, mixture"]
[papers.faser]
own = ["faser"]
[[rows]]
world = "cosine-short"
at_once = [2]
[[rows]]
world = "faser-short"
name = "trace"
rates = [4.0]
seconds = 1.0
[[rows]]
world = "faser-short"
at_once = [3]
"""


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worlds whose requests have few tokens."""
    short = {"prompt_tokens": [8, "assumed"], "output_tokens": [12, "assumed"]}
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    for paper, data in (("cosine", "offline"), ("faser", "humaneval")):
        base = f"{paper}-{'70b' if paper == 'cosine' else '32b'}"
        (tmp_path / f"{paper}-short.json").write_text(json.dumps({"like": base, "loads": {data: short}}))
    (tmp_path / "suite.toml").write_text(SUITE)
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(arms, "CHAINS", arms.CHAINS[1:4:2])
    monkeypatch.setattr(arms, "TREES", arms.TREES[1:4:2])
    return tmp_path


def test_the_suite_runs_every_arm_in_every_cell_and_sums_up(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["suite", "--seeds", "0", "--only", "short, 2|trace", "--out", str(short)]) == 0
    found = json.loads((short / "testbeds-suite.json").read_text())
    assert [*found["cells"]] == ["cosine-short, 2 at once", "trace, 4/s"]
    assert found["not_run"] == ["faser-short, 3 at once"] and found["seeds"] == [0]
    for paper, cell in zip(("cosine", "faser"), found["cells"].values(), strict=True):
        assert [*cell["arms"]] == [arm.name for arm in ARMS[paper](read_world(short / f"{paper}-short.json"))]
        assert (
            cell["quotients"]["pace over off"]["by_seed"][0] == cell["quotients"]["pace over off"]["mean_and_bounds"][0]
        )
    cosine, trace = (cell["arms"] for cell in found["cells"].values())
    assert (
        cosine["vanilla"]["0"]["chosen"].startswith("lengths fixed:") and trace["vanilla of 6"]["0"]["verified"] == 6.0
    )
    assert cosine["specinfer"]["0"]["verified"] >= int(cosine["specinfer"]["0"]["chosen"].partition(";")[0][-1])
    assert found["summary"]["pace over the best baseline"]["cells"] == 2
    assert found["summary"]["cosine over the best baseline"]["cells"] == 1
    assert "| pace over faser | 1 |" in capsys.readouterr().out
    again = ["suite", "--seeds", "0", "--only", "short, 2", "--chosen", str(short / "testbeds-suite.json")]
    assert run.main([*again, "--out", str(short)]) == 0
    assert json.loads((short / "testbeds-suite.json").read_text())["cells"]["cosine-short, 2 at once"]["arms"] == cosine


def test_no_world_is_left_out_of_the_suite_and_every_role_is_an_arms() -> None:
    suite = read_suite()
    every = {path.stem for path in FOLDER.glob("*-*.json")} | {
        *json.loads((FOLDER / "fitted.json").read_text())["worlds"]
    }
    assert {row.world for row in suite.rows} == every
    names = [cell.name for cell in cells_of(suite)]
    assert len(names) == len({*names}) and len(suite.seeds) >= 3
    for row in suite.rows:
        paper = row.world.partition("-")[0]
        world, roles = place_of(row, FOLDER).world, suite.papers[paper]
        known = {arm.name for arm in ARMS[paper](world)}
        if all(drafter.domain for drafter in world.drafters.values()):
            known.add("pipeinfer, mixture")  # a recording has no such drafter
        assert known >= {*roles.own, *roles.apart, *roles.left_out, "off", "pace"}


def test_a_quotient_is_over_the_best_baseline_of_its_own_seed() -> None:
    roles = read_suite().papers["faser"]
    speeds = [
        {"off": 2.0, "vanilla": 1.0, "faser": 3.0, "pace": 4.0},
        {"off": 1.0, "vanilla": 2.0, "faser": 4.0, "pace": 2.0},
    ]
    found = quotients(speeds, roles)
    assert found["pace over off"]["by_seed"] == [2.0, 2.0] and found["pace over off"]["mean_and_bounds"] == [2.0] * 3
    assert found["pace over the best baseline"]["by_seed"] == [2.0, 1.0]
    assert found["faser over the best baseline"]["by_seed"] == [1.5, 2.0]
    cells = {"a": {"quotients": found}, "b": {"quotients": {"pace over off": {"mean_and_bounds": [1.0, 0.5, 1.5]}}}}
    assert summary(cells)["pace over off"] == {"cells": 2, "least_lower": 0.5, "least": 1.0, "median": 1.5}


def test_a_broken_world_is_an_error_and_no_traceback(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "cosine-short.json").write_text('{"like": "cosine-70b", "hop_s": 3}')
    assert run.main(["suite", "--only", "short, 2", "--out", str(short)]) == 2
    assert "cosine-short.json: hop_s" in capsys.readouterr().err


def test_a_closed_loop_has_a_wave_before_and_behind_those_that_count() -> None:
    assert loop(16) == ("16 at once", 16, 16 + 64 + 16, None) and loop(1).requests == 1 + 10 + 1
    assert loop(16).wave == 16 and Load("", 1, 3, [0.0, 1.0, 2.0]).wave == 0


def test_an_arm_that_verifies_less_than_it_states_ends_the_run() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    arm = next(arm for arm in ARMS["faser"](world) if arm.name == "vanilla of 6")
    log = made(world, [Wanted("all", 8, 20)] * 4, 0)
    assert play(world, arm, log, loop(4, 1, 1), 0).verified == 6.0
    narrow = replace(arm.variant, policy={**arm.variant.policy, "max_batch_tokens": 16})
    with pytest.raises(RuntimeError, match="vanilla of 6 states fixed:6 and verified"):
        play(world, replace(arm, variant=narrow), log, loop(4, 1, 1), 0)


def test_no_arm_of_the_testbeds_is_steered() -> None:
    for paper, name in (("cosine", "cosine-70b"), ("faser", "faser-32b")):
        assert not any(arm.variant.is_steered for arm in ARMS[paper](read_world(FOLDER / f"{name}.json")))


def test_decoupled_drafters_are_faster_than_the_same_in_turn() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    log = made(world, [Wanted(domain, 8, 20) for domain in world.domains], 0)
    rows = {
        arm.name: play(world, arm, log, loop(4, 1, 1), 0)
        for arm in ARMS["cosine"](world)
        if arm.name.startswith("specinfer")
    }
    assert rows["specinfer"].tokens_per_s > rows["specinfer, coupled"].tokens_per_s


def test_without_second_best_guesses_a_tree_is_the_union_of_chains() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    recorded = made(world, [Wanted("finance", 8, 20)] * 2, 0)

    def with_seconds(confidence: float) -> Log:
        second = {"second": 7, "second_confidence": confidence, "further": ()}
        drafters = {
            name: log.model_copy(
                update={
                    "guesses": tuple(
                        tuple(tuple(one._replace(**second) for one in chain) for chain in text) for text in log.guesses
                    )
                }
            )
            for name, log in recorded.drafters.items()
        }
        return recorded.model_copy(update={"drafters": drafters})

    arm = next(arm for arm in ARMS["cosine"](world) if arm.name == "specinfer")
    one = {"drafters": ("finance",), "lengths": "tree:4"}
    trees, chains = (play(world, arm.at([one, way]), with_seconds(0.4), loop(1, 1, 1), 0) for way in arms.EXPANSIONS)
    plain = play(world, arm.at([one]), with_seconds(0.0), loop(1, 1, 1), 0)
    assert chains.request_s == plain.request_s != trees.request_s


def test_fitted_worlds_run_under_their_own_load_and_their_bands_are_written(
    short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((FOLDER / "fitted.json").read_text())
    worlds = {name: one | {"like": "faser-short"} for name, one in whole["worlds"].items() if name.startswith("faser")}
    for one in worlds.values():
        one["load"] |= {"data": "humaneval", "batch": 2, "texts": 4}
    (short / "fitted.json").write_text(json.dumps(whole | {"worlds": worlds}))
    assert run.main(["faser", "--fitted", "--out", str(short)]) == 0
    found = json.loads((short / "testbeds-faser-fitted.json").read_text())
    reading = found["readings"]["as stated"]
    assert reading["worlds"] == [*worlds] == [*found["worlds"]]
    first = found["worlds"]["faser-32b-74"]
    arms, facts = first["loads"]["faser-32b-74, humaneval, 2 at once"], worlds["faser-32b-74"]["facts"]
    assert first["facts"] == facts
    band = reading["bands"]["tokens/s, pace over faser"]
    assert band["low"] <= arms["pace"]["tokens_per_s"] / arms["faser"]["tokens_per_s"] + 1e-3 <= band["high"] + 2e-3
    assert "| tokens/s over the best baseline | 1.53 |" in capsys.readouterr().out


def test_the_length_is_the_best_one_on_other_data() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    arm = next(arm for arm in ARMS["faser"](world) if arm.name == "vanilla")
    perfect, useless = (_with_mixture(world, tokens) for tokens in (6.9, 1.01))
    assert _tuned_length(perfect, arm) > 4 > 1 == _tuned_length(useless, arm)


def test_one_drafter_is_the_expert_that_is_best_on_other_data() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    by_name = {arm.name: arm for arm in ARMS["cosine"](world)}
    log = made(world, [Wanted("medicine", 4, 30)] * 2, 0)  # that domain's expert is at home there
    for name in ("vanilla", "pipeinfer"):
        lengths, drafters = by_name[name].axes
        assert [*drafters] == [{"drafters": (expert,)} for expert in world.drafters if expert != "mixture"]
        best = tuned(world, replace(by_name[name], axes=(lengths[2:3], drafters)), log, loop(2, 1, 1), 0)
        assert best.drafters == ("medicine",) and best.chosen.endswith("3; drafters medicine")


def test_a_recordings_drafters_take_the_worlds_places() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    recorded = made(world, [Wanted(domain, 4, 10) for domain in world.domains], 0)
    renamed = {f"own-{name}": log for name, log in recorded.drafters.items() if name != "physics"}
    log = Log.model_construct(**{**dict(recorded), "drafters": renamed})
    own, found = over_recording(world, log, "own-mixture")
    assert set(own.drafters) == set(found.drafters) == set(renamed)
    assert own.drafters["own-mixture"].domain is None and own.drafters["own-medicine"].domain
    assert found.drafters["own-medicine"].token_s[1] > 0.002
    more = Log.model_construct(
        **{**dict(log), "drafters": {**renamed, "a": renamed["own-finance"], "b": renamed["own-finance"]}}
    )
    with pytest.raises(ValueError, match="6 experts"):
        over_recording(world, more, "own-mixture")


def test_a_recording_is_divided_into_texts_to_measure_and_texts_to_choose_on() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    log = made(world, [Wanted("all", 4, 10)] * 5, 0)
    measured, other = half(log, 0), half(log, 1)
    assert (measured.texts, other.texts) == (log.texts[::2], log.texts[1::2])
    guesses = log.drafters["qwen3-0.6b"].guesses
    assert measured.drafters["qwen3-0.6b"].guesses == (guesses[0], guesses[2], guesses[4])
    assert other.drafters["qwen3-0.6b"].guesses == (guesses[1], guesses[3])


def _with_mixture(world: WorldSpec, tokens: float) -> WorldSpec:
    spec = world.acceptance.model_copy(update={"mixture": Number(tokens, "assumed"), "second": Number(0.0, "assumed")})
    return world.model_copy(update={"acceptance": spec})


def _tuned_length(world: WorldSpec, arm: Arm) -> int:
    log = made(world, [Wanted("all", 4, 40)] * 2, 0)
    return int(tuned(world, arm, log, loop(2, 1, 1), 0).chosen.partition(";")[0].partition(":")[2])
