"""Test bands over fitting worlds: their arithmetic, and a small study from sampling to the file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.testbeds import cost_model, fitted, run
from lab.testbeds.fitted import band, beside_text, order_kept, verdict
from lab.testbeds.play import Figures
from lab.testbeds.sample import Fact
from lab.testbeds.studies import STUDIES, Load, Reading, Variation
from lab.testbeds.worlds import FOLDER, read_world


def figures(tokens_per_s: float) -> Figures:
    return Figures(tokens_per_s, 1.0, 0, 0, 0, 1, 0, 0, 0, 1.0, 1.0, "")


def test_a_band_is_the_median_and_the_points_that_nine_tenths_lie_between() -> None:
    assert band([float(i) for i in range(101)]) == {"low": 5.0, "median": 50.0, "high": 95.0}


@pytest.mark.parametrize(
    ("values", "excludes", "narrow", "holds"),
    [
        ([1.2, 1.3, 1.4], True, True, True),
        ([0.9, 1.3, 1.4], False, True, True),
        ([1.05, 1.3, 2.9], True, False, True),
        ([1.05, 1.1, 1.2], True, True, False),
        ([0.6, 0.7, 0.8], True, True, False),
    ],
)
def test_reproduced_needs_a_narrow_band_without_1_that_holds_the_number(
    values: list[float], excludes: bool, narrow: bool, holds: bool
) -> None:
    found = verdict(1.3, values)
    assert (found["excludes 1"], found["narrow"], found["holds"]) == (excludes, narrow, holds)
    assert found["reproduced"] == (excludes and narrow and holds)


def test_order_is_kept_where_every_arm_beats_the_next() -> None:
    good = {"a": figures(3.0), "b": figures(2.0), "c": figures(1.0)}
    found = order_kept(("a", "b", "c"), [good] * 4 + [{**good, "c": figures(2.5)}])
    assert found["part"] == 0.8 and found["is kept"]
    assert not order_kept(("b", "a"), [good])["is kept"]


def test_a_small_study_goes_from_samples_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"offline": {"prompt_tokens": [8, "assumed"], "output_tokens": [12, "assumed"]}}
    free = dict.fromkeys(json.loads((FOLDER / "cosine-70b.json").read_text())["free"])
    del free["target.batches"], free["acceptance.auc"]  # these two stay free
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    world = {"like": "cosine-70b", "loads": short, "free": free}
    (tmp_path / "cosine-short.json").write_text(json.dumps(world))
    monkeypatch.setattr(fitted, "FOLDER", tmp_path)
    monkeypatch.setattr(fitted, "SAMPLES", 6)
    monkeypatch.setattr(cost_model, "TOKENS", 300)
    monkeypatch.setattr(cost_model, "SAMPLE", 600)
    any_of_them = Fact("length", 0.0, 99.0, "of this test", lambda model: model.predict("off", 1, 8, 12).length)
    reading = Reading(
        "short", (any_of_them,), {"tokens/s, cosine over off": 1.3}, ("tokens/s, cosine over specinfer", "specinfer")
    )
    own = replace(
        STUDIES["cosine"],
        worlds=("cosine-short",),
        readings=(reading,),
        chosen=2,
        loads=(Load("offline", 1, 5), Load("offline", 2, 5)),
        moved=Load("offline", 1, 5),
        numbers=("acceptance.auc",),
        variations=(
            Variation("sure", {"acceptance.auc": 0.92}, Load("offline", 2, 5)),
            Variation("narrow", facts={"length": (98.0, 99.0)}),
        ),
    )
    monkeypatch.setitem(STUDIES, "cosine", own)
    assert run.main(["cosine", "--fitted", "--out", str(tmp_path)]) == 0
    whole = json.loads((tmp_path / "testbeds-cosine-fitted.json").read_text())
    found, took_s = whole["readings"]["short"], whole["took_s"]
    assert found["fitting"] == {"cosine-short": 6} and found["sampled"] == 6
    first, second = found["worlds"]
    assert (first["load"]["batch"], second["load"]["batch"]) == (1, 2)
    assert first["arms"]["specinfer"]["lengths"].startswith("tree:") and "cosine of 1" not in first["arms"]
    quotients = [own["arms"]["cosine"]["tokens_per_s"] / own["arms"]["off"]["tokens_per_s"] for own in (first, second)]
    assert found["bands"]["tokens/s, cosine over off"]["median"] == pytest.approx(sum(quotients) / 2, rel=1e-3)
    assert [*found["sensitivity"]] == ["as it is", "acceptance.auc"]
    details = first["arms"]["cosine"]["details"]
    assert len(details["token_s"]) == 3 and set(details["slo"]) == {"1.5", "2", "3", "5"}
    assert details["busy"]["target"] > 0.0 and "draft:physics" in details["busy"] and first["alone"]["first_s"] > 0.0
    assert found["variations"]["sure"] > 0.0 and found["variations"]["narrow"] is None
    assert {place: [*own] for place, own in found["facts moved"].items()} == {
        "acceptance.auc": ["length"],
        "target.batches": ["length"],
    }
    printed = capsys.readouterr().out
    assert "| narrow | no world fits |" in printed and "Where the paper's numbers do not fit" in printed
    assert "In the median world:" in printed and "| arm | drafted for a sequence |" in printed
    assert f"The study took {took_s:.0f} s." in printed and took_s > 0.0
    assert "| tokens/s, cosine over off | 1.30 |" in printed and "Worlds that fit: 6 of 6" in printed


def test_the_variations_that_reach_a_papers_number_are_named() -> None:
    own = {"sensitive": "tokens/s", "headline": 1.53, "facts moved": {}}
    text = beside_text({**own, "variations": {"calm": 1.2, "slow": 1.6, "none": None}})
    assert "| slow | 1.60 |" in text and "1.53 is reached by: slow." in text
    text = beside_text({**own, "variations": {"calm": 1.2, "none": None}})
    assert "None of them reaches 1.53; the highest is 1.20." in text


def test_every_variation_stands_on_numbers_loads_and_facts_that_there_are() -> None:
    for own in STUDIES.values():
        world = read_world(FOLDER / f"{own.worlds[0]}.json")
        names = {fact.name for reading in own.readings for fact in reading.facts}
        for one in own.variations:
            world.with_values(one.values)
            assert set(one.facts) <= names and (one.load is None or one.load.data in world.loads)
    kappas = [one.values.get("shared.kappa") for one in STUDIES["faser"].variations]
    assert 0.0 in kappas
