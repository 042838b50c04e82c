"""Test the table of experiments."""

import pytest

from lab.__main__ import ALIKE, MODULES, main


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALIKE.items():
        monkeypatch.setenv(name, value)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def test_every_experiment_is_listed_and_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(["--help"], capsys)
    for name, (_, what) in MODULES.items():
        assert f"{name} {what}" in text
        assert printed([name, "--help"], capsys).startswith(f"usage: paceline lab {name} ")


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["nothing"])
    assert exit_.value.code == 2 and "nothing" in capsys.readouterr().err
