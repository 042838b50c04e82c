"""Test which faults `./paceline chaos` injects, how often, and to which processes."""

import os
import random
import signal
from collections import Counter
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import StoreUnavailable
from app.local.instance import Instance
from app.store.protocol import Node
from bench.chaos.deployment import Site, paceline
from bench.chaos.faults import BESIDE, FAULTS
from bench.chaos.run import OFTEN, busy_cores, parse_args, plan


def test_every_second_random_fault_kills_the_verifier() -> None:
    found = Counter(name for _, name in islice(plan(parse_args(["--minutes", "1"])), 400))
    assert 150 < found[OFTEN] < 250 and len(found) > 10
    others = plan(parse_args(["--minutes", "1", "--faults", "kill web", "kill beat"]))
    assert {name for _, name in islice(others, 50)} == {"kill web", "kill beat"}


def test_each_fault_comes_as_often_as_wanted() -> None:
    args = parse_args(["--faults", "kill verify", "kill web", "--times", "2", "--gap", "1"])
    assert [*plan(args)] == [(1.0, "kill verify")] * 2 + [(1.0, "kill web")] * 2


def test_another_version_is_tried_where_one_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "other version" not in parse_args([]).faults and BESIDE.keys() <= FAULTS.keys()
    with pytest.raises(SystemExit):
        parse_args(["--other", str(tmp_path)])
    assert "has no file paceline" in capsys.readouterr().err
    (tmp_path / "paceline").touch()
    assert "other version" in parse_args(["--other", str(tmp_path)]).faults


def test_the_command_is_that_of_the_clone_on_the_same_state(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "paceline").write_text('#!/bin/sh\necho "$@ $PACELINE_STATE $PACELINE_DURABLE" > seen\n')
    (clone / "paceline").chmod(0o700)
    paceline(Instance(tmp_path, "x"), {"PACELINE_DURABLE": "true"}, "up", "-d", folder=clone)
    assert (clone / "seen").read_text() == f"up -d --instance x {tmp_path} true\n"


class Nodes:
    """What is live: this process as a verifier, and one that says no pid."""

    is_away = False

    def live(self, kind: str) -> list[Node]:
        """Return the nodes of the kind."""
        if self.is_away:
            raise StoreUnavailable("away")
        infos: list[dict[str, Any]] = [{"pid": os.getpid()}, {}, {"pid": 2**22 + 1}] if kind == "verify" else []
        return [Node(kind, "a", "owner", 0.0, info) for info in infos]


def test_signals_go_to_the_processes_with_a_heartbeat_else_to_those_that_were_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nodes: Any = Nodes()
    deployment: Any = SimpleNamespace(nodes=nodes)
    site = Site(Instance(tmp_path, "x"), deployment, random.Random(0))
    started = SimpleNamespace(processes={"verify": (1001,), "redis": (1002,)})
    monkeypatch.setattr(Site, "health", lambda _: started)
    assert site.pids("verify") == [os.getpid()] and site.pids("redis") == [1002]
    nodes.is_away = True
    assert site.pids("verify") == [1001]


def test_busy_cores_are_busy_no_longer_than_wanted() -> None:
    with busy_cores() as loops:
        assert len(loops) == os.cpu_count()
        assert all(loop.poll() is None for loop in loops)
    assert {loop.returncode for loop in loops} == {-signal.SIGKILL}
