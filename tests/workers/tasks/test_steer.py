"""Test the controller on a real deployment: the load it reads, its log, and the same decisions from that."""

from unittest.mock import Mock

import pytest

from app.config import Settings
from app.load import Load
from app.messages import ToDrafter
from app.request import GenerateRequest
from bench.steer_replay import main, read, replay
from tests.workers.cluster import Cluster, wait_for
from workers.celery_app import STEER, make_celery
from workers.deployment import Deployment
from workers.tasks.steer import Tick, load_of, register, tick


def test_a_tick_with_arguments_is_a_tick() -> None:
    celery, deployment = make_celery(Settings(redis_url="redis://localhost:1/0")), Mock()
    register(celery, deployment)
    deployment.nodes.try_lock.return_value = False
    celery.tasks[STEER](7, self=1)
    deployment.nodes.try_lock.assert_called_once()


def test_a_recorded_log_replayed_gives_the_same_decisions(cluster: Cluster, deployment: Deployment) -> None:
    log = cluster.settings().steer_log
    assert log is not None
    stream = cluster.stream(GenerateRequest(prompt="Steer", raw=True, max_tokens=1200, temperature=0.8, seed=501))

    def seen() -> list[Tick]:
        with_work = (t for t in read(log) if t.load.active and t.load.running)  # heartbeats lag behind the requests
        busy = [(t, t.load.verifiers[0]) for t in with_work if t.load.busiest("draft")]
        return [t for t, one in busy if one.by_drafter and one.contexts]  # this request has been read, too

    busy = wait_for(seen, 30, "ticks with work in them")
    stream.read(until=1)
    stream.close()
    cluster.get(f"/api/requests/{stream.id}", method="DELETE")
    load = busy[-1].load
    assert load.drafters == 1
    assert {"draft:draft-1", "verify:verify-1", "fuse", "settle"} <= load.mailboxes.keys()
    assert 0.0 < load.busy["verify:verify-1"] <= 1.0
    one = load.verifiers[0]
    assert one.contexts and one.step_s > 0.0
    assert one.draft_wait_s > 0.0 and one.accepted_length >= 1.0
    assert main([str(log)]) == 0
    ticks = read(log)
    found = replay(ticks)
    assert found.ticks == len(ticks) > 1 and found.differing == ()
    other = ticks[-1].model_copy(update={"after": ticks[-1].after.model_copy(update={"max_draft_tokens": 1})})
    assert replay([*ticks[:-1], other]).differing == (len(ticks),), "and it can tell"


def test_the_load_has_the_age_of_a_mailboxs_first_item(lone_deployment: Deployment) -> None:
    lone_deployment.nodes.beat("draft", "d", "owner", progress_s=0.0, info={"drafters": ["a", "b"], "busy": 0.5})
    lone_deployment.nodes.beat("verify", "v", "other", progress_s=0.0, info={"load": {"what": 1}, "sequences": 3})
    lone_deployment.nodes.beat("beat", "b", "third", progress_s=0.0, info={"busy": 1.0})
    lone_deployment.mailboxes.post("draft:d", [ToDrafter(sent_s=1.0).json()])
    lone_deployment.post("draft:d", [ToDrafter()])
    lone_deployment.mailboxes.post("fuse", ["no JSON at all"])
    load = load_of(lone_deployment)
    assert load.mailboxes["draft:d"].waiting == 2 and load.mailboxes["draft:d"].oldest_s > 1e6
    assert load.mailboxes["fuse"].model_dump() == {"waiting": 1, "oldest_s": 0.0}
    assert (load.drafters, load.busy) == (2, {"draft:d": 0.5, "verify:v": 0.0})
    assert load.running == 3, "a load that cannot be read leaves what is known"
    assert lone_deployment.mailboxes.waiting("draft:d") == 2, "looking takes nothing"
    first = ToDrafter.read(lone_deployment.mailboxes.first("draft:d") or "")
    assert first.sent_s == 1.0
    assert Load.model_validate_json(load.model_dump_json()) == load


def test_a_tick_publishes_and_a_second_one_at_once_does_nothing(lone_deployment: Deployment) -> None:
    lone_deployment.nodes.beat("draft", "d", "owner", progress_s=0.0, info={})
    lone_deployment.mailboxes.post("draft:d", [ToDrafter(sent_s=1.0).json()])
    tick(lone_deployment)
    first = lone_deployment.nodes.policy()
    assert (first.version, first.max_draft_tokens) == (1, 4)
    tick(lone_deployment)
    assert lone_deployment.nodes.policy() == first


def test_a_log_that_is_none_is_refused(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "log").write_text("{}\n")
    assert main([str(tmp_path / "log")]) == 2
    assert main([str(tmp_path / "none")]) == 2
    assert "log" in capsys.readouterr().err
