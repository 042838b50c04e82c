"""Test that a start says what its processes do, and on a pipe not too often."""

import json
from pathlib import Path

import pytest

from app.local import progress_line
from app.local.children import Service
from app.local.instance import Instance
from app.local.progress_line import ProgressLine
from app.local.starting import Starting

TIME = "2026-11-28 02:51:54,097"
VERIFY, DRAFT = (Service(role=role, name=f"{role}-1", argv=()) for role in ("verify", "draft"))


def test_a_start_says_what_each_process_does_since_it_began(tmp_path: Path) -> None:
    verify, draft = (tmp_path / f"{service.name}.log" for service in (VERIFY, DRAFT))
    verify.write_text(f"{TIME} INFO starting: of a start before\n")
    starting = Starting([VERIFY, DRAFT], tmp_path, 41.4)
    assert starting.describe(["verify", "web"]) == "waiting 0 s (last time 41 s) for verify, web"
    with verify.open("a") as log:
        log.write(f"{TIME} INFO starting: reading weights\n{TIME} INFO kernels.jit: compiling kernel 2: decode\n")
        log.write(f"{TIME} INFO celery: another\n")
    draft.write_text(json.dumps({"level": "INFO", "logger": "starting", "message": "warming up"}) + "\n{cut")
    expected = "waiting 0 s (last time 41 s) for verify (compiling kernel 2: decode), draft (warming up)"
    assert starting.describe(["verify", "draft"]) == expected
    assert starting.stages() == ["compiling kernel 2: decode", "warming up"]
    assert "(compiling kernel 2: decode, 0 s)" in starting.describe(["verify"])


def test_a_start_is_compared_with_the_last_of_the_same_models(tmp_path: Path) -> None:
    instance = Instance(tmp_path)
    assert instance.last_start_s("a b") is None
    instance.folder.mkdir()
    instance.keep_start("a b", 41.44)
    assert instance.last_start_s("a b") == 41.4 and instance.last_start_s("a") is None


def test_a_pipe_gets_a_line_for_each_kind_of_state_and_others_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([100.0, 100.1, 101.0, 106.0, 106.0])  # a line that is written looks at the clock again
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: next(times))
    show = ProgressLine()
    for text in ("fetching", "waiting 1 s", "waiting 2 s", "waiting 7 s"):
        show(text)
    assert capsys.readouterr().err == "fetching\nwaiting 1 s\nwaiting 7 s\n"
