"""Test the command line: its refusals, their words, its exit codes."""

import argparse
import json
import os
import tomllib
from pathlib import Path

import pytest

from app.cli.generate import _request, _show, add_generate
from app.cli.main import main
from app.config import ROOT
from app.errors import InvalidRequest
from app.local.health import Health, load_of
from app.local.instance import Instance, ProcessId, State
from app.messages import FinishReason, Result, SpeculationReport, Status, Timing, Usage
from app.request import Conversation, GenerateRequest, SpeculationBounds
from app.version import VERSION

REDIS_URL = "redis://:secret@127.0.0.1:1"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_STATE", str(tmp_path))
    return tmp_path


def _pretend(folder: Path, name: str, port: int = 8000, ready: bool = True) -> None:
    """Write the state of an instance whose supervisor is this process."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    state = State(
        instance=name,
        supervisor=me,
        url=f"http://127.0.0.1:{port}",
        redis_url=REDIS_URL,
        namespace="n",
        ready=ready,
    )
    Instance(folder, name).write(state)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["generate"], "prompt: give either prompt, messages or prompt_ids"),
        (["generate", "x", "--top-p", "7"], "top_p: Input should be less than or equal to 1"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens: "),
        (["generate", "x", "--temperature", "nan"], "temperature: "),
        (["generate", "x", "--messages-file", "/nowhere"], "messages-file: "),
        (["generate", "x", "--json-schema", "/nowhere"], "json-schema: "),
        (["generate", "x", "--json-schema", "NESTED"], "json-schema: "),
        (["generate", "x", "--json-schema", "MESSAGES"], "response_format.json_schema.schema: "),
        (["generate", "x", "--stop", ""], "stop.0: "),
        (["generate", "x", "--logprobs", "21"], "logprobs: "),
        (["generate", "--raw", "--messages-file", "MESSAGES"], "raw applies to prompt"),
    ],
)
def test_wrong_input_names_the_field(
    words: list[str], sentence: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "messages").write_text('[{"role": "user", "content": "hi"}]')
    (state / "nested").write_text("[" * 100_000)
    assert main([str(state / word.lower()) if word in ("MESSAGES", "NESTED") else word for word in words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.out == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fly"], "'fly'"),
        (["up", "--port", "0"], "the port must be a number from 1 to 65535"),
        (["up", "--port", "99999"], "the port must be a number from 1 to 65535"),
        (["up", "--port", "http"], "the port must be a number from 1 to 65535"),
        (["keys", "add", "x", "--rate", "60/hour"], "such as 60/min"),
        (["status", "x"], "unrecognized arguments: x"),
    ],
)
def test_wrong_usage_exits_2_with_the_right_one(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "usage: paceline" in err and sentence in err


def test_no_command_prints_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and all(name in captured.err for name in ("generate", "up", "keys", "bench"))


def test_wrong_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PACELINE_LEASE_S", "soon")
    assert main(["status"]) == 2
    assert "PACELINE_LEASE_S: " in capsys.readouterr().err


def test_status_without_instance_is_3_and_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed["ready"] is False and printed["url"] is None
    assert set(printed["processes"]) == {"web", "control", "fuse", "draft", "verify", "beat", "redis"}


def test_down_without_instance_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().out == "not running\n"


def test_unknown_model_is_refused_before_a_start(
    monkeypatch: pytest.MonkeyPatch, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_MODEL", "no-such-model")
    for words in (["up", "-d"], ["generate", "x"]):
        assert main(words) == 1
        assert "'no-such-model' is neither" in capsys.readouterr().err
    assert not list(state.glob("*/redis"))


def test_up_of_a_running_instance_prints_its_url(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _pretend(state, "default")
    for words in (["up", "-d"], ["up"], ["up", "--port", "8000"]):
        assert main(words) == 0
        assert capsys.readouterr().out == "already running: http://127.0.0.1:8000\n"
    assert main(["up", "--instance", "default", "--port", "8001"]) == 1
    assert "already runs" in capsys.readouterr().err
    _pretend(state, "default", ready=False)
    assert main(["up"]) == 1
    assert "still starting" in capsys.readouterr().err


def test_status_hides_the_password_of_redis_unless_asked(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--redis-url"]) == 3
    assert capsys.readouterr() == ("", "default: not running\n")
    _pretend(state, "default")
    health = Health(instance="default", url="http://x", redis_url=REDIS_URL, processes={})
    monkeypatch.setattr("app.cli.run.check", lambda *_: health)  # no Redis to wait for
    main(["status"])
    assert "  Redis: redis://***@127.0.0.1:1, tasks go" in capsys.readouterr().out
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["redis_url"] == REDIS_URL
    assert main(["status", "--redis-url"]) == 0
    assert capsys.readouterr().out == f"{REDIS_URL}\n"


def test_status_tells_the_form_of_each_drafters_weights(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(state, "default")
    nodes = {"draft-1": {"weights": {"small": "q4_0"}}, "draft-2": {"weights": {"other": "stored"}}, "verify-1": {}}
    health = Health(instance="default", url="http://x", processes={}, nodes=nodes)
    monkeypatch.setattr("app.cli.run.check", lambda *_: health)
    main(["status"])
    assert "  drafter 'other': weights 'stored'\n  drafter 'small': weights 'q4_0'\n" in capsys.readouterr().out


def test_status_tells_the_results_of_audits(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(state, "default")
    audits = {"same": 12, "differs": 0, "skipped": 1}
    health = Health(instance="default", url="http://x", processes={}, audits=audits)
    monkeypatch.setattr("app.cli.run.check", lambda *_: health)
    main(["status"])
    assert "  audits: 12 same, 0 differs, 1 skipped\n" in capsys.readouterr().out


def test_status_tells_what_runs_and_how_fast(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(state, "default")
    first = {"at_s": 100.0, "tokens": {"target": 3}}
    last = {
        "at_s": 110.0, "tokens": {"target": 40, "small": 63}, "running": 2, "active": 5, "depths": {"room": 1},
        "ended": 7, "drafted": 200, "accepted": 63,
    }  # fmt: skip
    load = load_of([first, last])
    health = Health(
        instance="default", url="http://x", ready=True, model="tiny", plan="pace", up_s=3725.0, load=load,
        processes={"verify": (12,), "web": ()}, memory_bytes={"verify": 300 * 2**20},
    )  # fmt: skip
    monkeypatch.setattr("app.cli.run.check", lambda *_: health)
    assert main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "default: ready at http://x, up 1:02:05",
        "  model tiny, plan pace",
        "  requests: 2 running, 4 waiting, 7 done",
        "  10.0 tokens/s in the last 10 s, 103 tokens in all, 32% of draft tokens right",
    ]
    assert lines[5:] == ["  verify  12  300 MiB", "  web     -"]
    main(["status", "--json"])
    assert json.loads(capsys.readouterr().out)["load"]["acceptance"] == 0.315


@pytest.mark.parametrize("words", [["up"], ["up", "-d"], ["down"], ["status"], ["doctor"], ["generate", "x"]])
def test_what_the_system_refuses_is_a_sentence(
    words: list[str], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "default").touch()
    assert main(words) == 1
    assert capsys.readouterr().err == f"paceline: {state}/default/state.json cannot be used: Not a directory\n"


def test_several_instances_need_a_name(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _pretend(state, "one")
    _pretend(state, "two")
    assert main(["status"]) == 1
    assert "one, two" in capsys.readouterr().err


def test_quick_means_the_unit_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("app.cli.run.os.environ", dict(os.environ))
    monkeypatch.setattr("app.cli.run.subprocess.call", lambda command, cwd: commands.append(command) or 0)
    assert main(["test", "--quick", "tests/app", "-q"]) == main(["bench", "--quick"]) == 0
    assert commands[0][-4:] == ["-m", "unit and not extended", "tests/app", "-q"] and "pytest" in commands[0]
    assert commands[1][-1] == "--quick", "a flag of test alone"


@pytest.mark.parametrize("name", ["test", "lab"])
def test_what_is_in_a_clone_only_is_refused_elsewhere(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.cli.run.IS_CLONE", False)
    assert main([name]) == 1
    assert f"run `./paceline {name}` in a clone" in capsys.readouterr().err


def test_named_instance_must_run(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Hello", "--instance", "nope"]) == 1
    assert "instance 'nope' is not running" in capsys.readouterr().err


def parse(*flags: str) -> GenerateRequest:
    parser = argparse.ArgumentParser()
    add_generate(parser.add_subparsers())
    return _request(parser.parse_args(["generate", "x", *flags]))


def test_flags_are_the_requests_fields() -> None:
    flags = "--temperature 0.5 --top-p 0.9 --top-k 3 --min-p 0.1 --seed 7 --choice 2 --frequency-penalty 1"
    rest = "--presence-penalty -1 --raw --max-tokens 9 --stop a --stop b --logprobs 2 --min-tokens 3 --ignore-eos"
    rest += " --repetition-penalty 1.25 --prompt-logprobs 4 --thinking-token-budget 5"
    values = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7, "choice": 2, "frequency_penalty": 1.0,
        "presence_penalty": -1.0, "raw": True, "max_tokens": 9, "stop": ("a", "b"), "logprobs": 2,
        "min_tokens": 3, "ignore_eos": True, "repetition_penalty": 1.25, "prompt_logprobs": 4,
        "thinking_token_budget": 5,
    }  # fmt: skip
    assert parse(*flags.split(), *rest.split()) == GenerateRequest(prompt="x", **values)
    assert parse() == GenerateRequest(prompt="x")
    as_json = {
        "logit_bias",
        "allowed_token_ids",
        "messages",
        "response_format",
        "speculation",
        "prompt_ids",
        "stop_token_ids",
        *Conversation.model_fields,
    }
    assert values.keys() == GenerateRequest.model_fields.keys() - as_json - {"prompt"}


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]
    assert f'\nVERSION = "{VERSION}"\n' in (ROOT / about["path"]).read_text()
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0 and capsys.readouterr().out == f"paceline {VERSION}\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--version" in capsys.readouterr().out


def test_speculation_bounds_are_flags() -> None:
    def bounds(*flags: str) -> SpeculationBounds:
        return parse(*flags).speculation

    assert bounds() == SpeculationBounds()
    assert bounds("--max-draft-tokens", "3", "--drafters", "lookup,small") == SpeculationBounds(
        max_draft_tokens=3, drafters=("lookup", "small")
    )
    assert bounds("--no-speculation") == SpeculationBounds(enabled=False)
    with pytest.raises(InvalidRequest, match="max_draft_tokens"):
        bounds("--max-draft-tokens", "-1")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["--host", "0.0.0.0"], 1, "--api-key-file, or allow it by --insecure"),
        (["--host", "999.1"], 2, "host: must be an address"),
        (["--served-model-name", "a b"], 2, "served_name: String should match"),
        (["no-owner/no-model"], 1, "cannot be fetched from the hub"),
        (["no-such-model"], 1, "neither a known name"),
    ],
)
def test_up_refuses_in_a_sentence(
    words: list[str],
    code: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PACELINE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["up", *words]) == code
    assert reason in " ".join(capsys.readouterr().err.split())


def test_a_generated_text_ends_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    drafts = SpeculationReport(rounds=4, drafted=20, accepted=7, mean_accepted_length=2.75, by_drafter={})
    found = Result(
        id="r", status=Status.DONE, text="Hi", token_ids=(1,) * 11, finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=3, completion_tokens=11), timing=Timing(ttft_s=0.5, total_s=1.0), speculation=drafts,
    )  # fmt: skip
    assert _show(found, as_json=False) == 0
    shown = capsys.readouterr()
    assert shown.err == "[11 tokens, 20.0 tokens/s, 7 of 20 draft tokens right, stop]\n" and shown.out == "\n"
    assert _show(found, as_json=True) == 0 and not capsys.readouterr().err
