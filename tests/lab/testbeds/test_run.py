"""Test the testbeds' arms, loads and tables on small texts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.simulate.log import Log
from lab.testbeds import arms, run
from lab.testbeds.arms import ARMS, Arm
from lab.testbeds.play import Figures, compared, over_recording, tuned
from lab.testbeds.texts import Wanted, made
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
    names = [arm.name for arm in ARMS[paper].arms(read_world(short / f"{paper}-short.json"))]
    assert [*found["loads"]] == ["batch 2", "4/s, code"]
    assert found["took_s"] > 0.0 and found["flags"].startswith("Where the paper's numbers do not fit")
    assert all([*rows] == names for rows in found["loads"].values())
    printed = capsys.readouterr().out
    assert all(printed.count(f"\n| {name} ") >= 6 for name in names) and "no verdict" in printed
    assert printed.startswith("Where the paper's numbers do not fit each other")
    assert found["loads"]["batch 2"]["vanilla"]["lengths"].removeprefix("fixed:") in ("2", "4")
    assert "| arm | a request, s | first token, s |" in printed and found["alone"]["token_s"] > 0.0
    details = found["loads"]["4/s, code"]["pace"]["details"]
    assert len(details["request_s"]) == 3 and "0" in found["loads"]["batch 2"]["off"]["details"]["drafted a step"]
    assert None not in [value for values in found["compared"].values() for value in values]


def test_a_broken_world_is_an_error_and_no_traceback(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "cosine-short.json").write_text('{"like": "cosine-70b", "hop_s": 3}')
    assert run.main(["cosine", "--worlds", "cosine-short"]) == 2
    assert "cosine-short.json: hop_s" in capsys.readouterr().err


def figures(tokens_per_s: float, request_s: float, price_per_h: float = 1.0) -> Figures:
    return Figures(tokens_per_s, request_s, 0, 0, 0, 1, 0, 0, 0, price_per_h, 1.0, "")


def test_a_quotient_is_over_the_best_of_the_others() -> None:
    rows = {"off": figures(10.0, 8.0), "specinfer": figures(20.0, 5.0, 4.0), "cosine": figures(30.0, 4.0, 6.0)}
    values = {one.paper: compared(one, rows) for one in ARMS["cosine"].comparisons}
    assert values["latency, cosine over the best baseline"] == pytest.approx(4.0 / 5.0)
    assert values["tokens/s, cosine over off"] == pytest.approx(3.0)
    assert values["headline, at equal cost"] == pytest.approx(5.0 / 10.0)
    assert values["tokens/s, pace over cosine"] is None
    assert rows["off"].cost == pytest.approx(1e6 / 36000.0)


def test_lengths_are_those_that_are_best_on_other_data() -> None:
    world = read_world(FOLDER / "faser-32b.json")
    arm = next(arm for arm in ARMS["faser"].arms(world) if arm.name == "vanilla")
    perfect, useless = (_with_home(world, tokens) for tokens in (6.9, 1.01))
    assert _tuned_length(perfect, arm) > 4 > 1 == _tuned_length(useless, arm)


def test_one_drafter_is_the_expert_that_is_best_on_other_data() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    experts = tuple(name for name, one in world.drafters.items() if one.domain)
    by_name = {arm.name: arm for arm in ARMS["cosine"].arms(world)}
    assert by_name["vanilla"].one_of == by_name["pipeinfer"].one_of == experts
    log = made(world, [Wanted("medicine", 4, 30)] * 2, 0)  # that domain's expert is at home there
    for name in ("vanilla", "pipeinfer"):
        own = replace(by_name[name], lengths=by_name[name].lengths[2:4])
        best = tuned(world, own, log, 2, 0)
        assert best.drafters == ("medicine",) and not best.one_of


def test_cosine_is_run_with_every_number_of_drafters_below_all() -> None:
    world = read_world(FOLDER / "cosine-70b.json")
    of = {arm.name: arm for arm in ARMS["cosine"].arms(world) if arm.name.startswith("cosine of")}
    assert [*of] == ["cosine of 1", "cosine of 2", "cosine of 3", "cosine of 4"]
    assert all(arm.variant.changes["drafters_per_sequence"] == len(arm.drafters) for arm in of.values())


def test_pace_is_compared_with_baselines_of_one_drafter() -> None:
    rows = {"off": figures(10.0, 8.0), "vanilla, mixture": figures(20.0, 5.0, 2.0), "pace": figures(30.0, 4.0, 6.0)}
    values = {one.paper: compared(one, rows) for one in ARMS["cosine"].comparisons}
    assert values["tokens/s, pace over the best of one drafter"] == pytest.approx(1.5)
    assert values["pace over the best of one drafter, at equal cost"] == pytest.approx(5.0 / 10.0)
    assert values["tokens/s, pace of the mixture over the best of one drafter"] is None


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


def _with_home(world: WorldSpec, tokens: float) -> WorldSpec:
    spec = world.acceptance.model_copy(update={"mixture": Number(tokens, "assumed")})
    return world.model_copy(update={"acceptance": spec})


def _tuned_length(world: WorldSpec, arm: Arm) -> int:
    log = made(world, [Wanted("all", 4, 40)] * 2, 0)
    return int(str(tuned(world, arm, log, 2, 0).variant.changes["lengths"]).partition(":")[2])
