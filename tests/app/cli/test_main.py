"""The command line: what it refuses, in what words, with which exit code."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.generate import _request, add_generate
from app.cli.main import main
from app.config import ROOT
from app.errors import InvalidRequest
from app.local.instance import Instance, ProcessId, State
from app.request import Speculation


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_STATE", str(tmp_path))
    return tmp_path


def _pretend(folder: Path, name: str, port: int = 8000, ready: bool = True) -> None:
    """An instance whose supervisor is this process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    state = State(
        instance=name,
        supervisor=me,
        url=f"http://127.0.0.1:{port}",
        redis_url="redis://127.0.0.1:1",
        namespace="n",
        ready=ready,
    )
    Instance(folder, name).write(state)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate"], "prompt: give either prompt or messages"),
        (["generate", "x", "--top-p", "7"], "top_p: Input should be less than or equal to 1"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens: "),
        (["generate", "x", "--temperature", "nan"], "temperature: "),
        (["generate", "x", "--messages-file", "/nowhere"], "messages-file: "),
        (["generate", "x", "--json-schema", "/nowhere"], "json-schema: "),
        (["generate", "x", "--json-schema", "MESSAGES"], "response_format.json_schema.schema: "),
        (["generate", "x", "--stop", ""], "stop.0: "),
        (["generate", "x", "--logprobs", "21"], "logprobs: "),
        (["generate", "--raw", "--messages-file", "MESSAGES"], "raw needs prompt"),
    ],
)
def test_wrong_input_names_the_field(
    words: list[str], said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "messages").write_text('[{"role": "user", "content": "hi"}]')
    assert main([str(state / "messages") if word == "MESSAGES" else word for word in words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "'fly'"),
        (["up", "--port", "0"], "a port is a number from 1 to 65535"),
        (["up", "--port", "99999"], "a port is a number from 1 to 65535"),
        (["up", "--port", "http"], "a port is a number from 1 to 65535"),
        (["keys", "add", "x", "--rate", "60/hour"], "such as 60/min"),
        (["status", "x"], "unrecognized arguments: x"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_right(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "usage: paceline" in err and said in err


def test_no_command_is_shown_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and all(name in captured.err for name in ("generate", "up", "keys", "bench"))


def test_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PACELINE_LEASE_S", "soon")
    assert main(["status"]) == 2
    assert "PACELINE_LEASE_S: " in capsys.readouterr().err


def test_status_of_nothing_is_3_and_still_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 3
    said = json.loads(capsys.readouterr().out)
    assert said["ready"] is False and said["url"] is None
    assert set(said["processes"]) == {"web", "control", "fuse", "draft", "verify", "beat", "redis"}


def test_down_of_nothing_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().out == "not running\n"


def test_unknown_model_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_MODEL", "no-such-model")
    for words in (["up", "-d"], ["generate", "x"]):
        assert main(words) == 1
        assert "'no-such-model' is neither" in capsys.readouterr().err
    assert not list(state.glob("*/redis"))


def test_up_of_a_running_instance_says_where(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _pretend(state, "default")
    for words in (["up", "-d"], ["up"], ["up", "--port", "8000"]):
        assert main(words) == 0
        assert capsys.readouterr().out == "already running: http://127.0.0.1:8000\n"
    assert main(["up", "--instance", "default", "--port", "8001"]) == 1
    assert "already runs" in capsys.readouterr().err
    _pretend(state, "default", ready=False)
    assert main(["up"]) == 1
    assert "still starting" in capsys.readouterr().err


def test_one_of_several_instances_must_be_named(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _pretend(state, "one")
    _pretend(state, "two")
    assert main(["status"]) == 1
    assert "one, two" in capsys.readouterr().err


def test_command_line_starts_without_torch() -> None:
    script = "import sys, app.cli.main; sys.exit(bool({'torch', 'transformers', 'flask', 'celery'} & set(sys.modules)))"
    assert subprocess.call([sys.executable, "-c", script], cwd=ROOT) == 0


def test_flags_of_test_go_to_pytest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli.main", "test", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "pytest" in done.stdout + done.stderr


def test_a_named_instance_that_does_not_run_is_not_replaced(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hello", "--instance", "nope"]) == 1
    assert "instance 'nope' does not run" in capsys.readouterr().err


def test_a_requests_own_bounds_are_flags() -> None:
    parser = argparse.ArgumentParser()
    add_generate(parser.add_subparsers())

    def bounds(*flags: str) -> Speculation:
        return _request(parser.parse_args(["generate", "x", *flags])).speculation

    assert bounds() == Speculation()
    assert bounds("--max-draft-tokens", "3", "--drafters", "lookup,small") == Speculation(
        max_draft_tokens=3, drafters=("lookup", "small")
    )
    assert bounds("--no-speculation") == Speculation(enabled=False)
    with pytest.raises(InvalidRequest, match="max_draft_tokens"):
        bounds("--max-draft-tokens", "-1")
