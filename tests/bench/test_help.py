"""Test the help of the benchmarks' commands."""

import pytest

from bench.__main__ import MODULES
from bench.__main__ import main as bench
from bench.chaos.faults import FAULTS
from bench.chaos.run import main as chaos
from bench.load.run import ARRIVALS, OWN


def printed(main: object, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(words)  # type: ignore[operator]
    assert exit_.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_every_default_is_in_the_help_and_none_twice(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(bench, ["load", "steps", "--help"], capsys)
    assert "requests a second, in turn (default: 0.5 5.0 0.5)" in text
    assert "of the arrivals (default: 0)" in text
    assert "file to write (default: .paceline/results/load.json)" in text
    assert "(default: None)" not in text and "(default: one of its own, started and stopped) (" not in text


def test_every_benchmark_is_named_and_calls_itself_by_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(bench, ["--help"], capsys)
    for name, (_, what) in MODULES.items():
        assert f"bench {name} {what}" in text
        assert printed(bench, [name, "--help"], capsys).startswith(f"usage: paceline bench {name} ")


@pytest.mark.parametrize("scenario", [*ARRIVALS, *OWN])
def test_every_scenario_of_load_has_a_help(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(bench, ["load", scenario, "--help"], capsys).startswith(f"usage: paceline bench load {scenario} ")


def test_every_fault_is_listed_with_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(FAULTS)
    for name, line in zip(FAULTS, lines, strict=True):
        what = line.removeprefix(name)
        assert what != line and what.strip().split(" (not here")[0].endswith(".")
