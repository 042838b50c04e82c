"""Test the testbeds' arms, loads and tables on small texts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.simulate.log import Log
from lab.testbeds import arms, run
from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.play import tuned
from lab.testbeds.texts import Wanted, half, made, over_recording
from lab.testbeds.worlds import FOLDER, Number, WorldSpec, read_world


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Worlds whose requests have few tokens."""
    short = {"prompt_tokens": [8, "assumed"], "output_tokens": [12, "assumed"]}
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    for paper, data in (("cosine", "offline"), ("faser", "humaneval")):
        base = f"{paper}-{'70b' if paper == 'cosine' else '32b'}"
        (tmp_path / f"{paper}-short.json").write_text(json.dumps({"like": base, "loads": {data: short}}))
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(arms, "LENGTHS", (2, 4))
    return tmp_path


@pytest.mark.parametrize("paper", ["cosine", "faser"])
def test_every_arm_runs_and_the_tables_have_all_of_them(
    paper: str, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [paper, "--worlds", f"{paper}-short", "--batches", "2", "--rates", "4", "--seconds", "1"]
    assert run.main([*words, "--arrivals", "code", "--out", str(short)]) == 0
    found = json.loads((short / f"testbeds-{paper}-short.json").read_text())
    names = [arm.name for arm in ARMS[paper](read_world(short / f"{paper}-short.json"))]
    assert [*found["loads"]] == ["batch 2", "4/s, code"]
    assert all([*rows] == names for rows in found["loads"].values())
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n| {name} ") >= 2 for name in names) and "no verdict" in printed
    assert found["loads"]["batch 2"]["vanilla"]["chosen"].removeprefix("lengths fixed:")[0] in "24"
    own = found["loads"]["4/s, code"]["pace"]
    assert len(own["percentiles"]["request_s"]) == 3
    assert found["loads"]["batch 2"]["off"]["drafted"] == 0.0 < found["drafts"]["any"]["all"]
    assert None not in [value for values in found["compared"].values() for value in values]


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
    assert band["low"] <= arms["faser"]["request_s"] / arms["pace"]["request_s"] + 1e-3 <= band["high"] + 2e-3
    assert "| tokens/s over the best baseline | 1.53 |" in capsys.readouterr().out


def test_a_broken_world_is_an_error_and_no_traceback(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "cosine-short.json").write_text('{"like": "cosine-70b", "hop_s": 3}')
    assert run.main(["cosine", "--worlds", "cosine-short"]) == 2
    assert "cosine-short.json: hop_s" in capsys.readouterr().err


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
        variants = tuple(one for one in by_name[name].variants if one.settings["lengths"] == "fixed:3")
        assert [one.drafters for one in variants] == [(expert,) for expert in world.drafters if expert != "mixture"]
        best = tuned(world, replace(by_name[name], variants=variants), log, 2, 0)
        assert best.drafters == ("medicine",) and best.chosen == "medicine"


def test_cosine_is_run_with_every_number_of_drafters_below_all() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    of = {arm.name: arm for arm in ARMS["cosine"](world) if arm.name.startswith("cosine of")}
    assert [*of] == ["cosine of 1", "cosine of 2", "cosine of 3", "cosine of 4"]
    assert all(arm.variant.changes["drafters_per_sequence"] == len(arm.drafters) for arm in of.values())


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
    return int(tuned(world, arm, log, 2, 0).chosen.partition(":")[2])
