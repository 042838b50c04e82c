"""Test the commands and environments of an instance's processes."""

from pathlib import Path

from app.config import Settings
from app.local.instance import Instance
from app.local.process_specs import namespace, services, settings_environment


def test_settings_survive_the_environment() -> None:
    settings = Settings(model="/m", drafters=("a", "b"), redis_url="redis://x", lease_s=1.5, home=Path("/h"))
    assert Settings.from_env(settings_environment(settings)) == settings
    without = settings.model_copy(update={"drafters": ()})
    assert Settings.from_env(settings_environment(without)).drafters == ()


def test_each_role_runs_with_passive_threads() -> None:
    planned = services(Settings(verify_threads=3), 8123)
    assert {service.role for service in planned} == {"control", "fuse", "draft", "verify", "beat", "web"}
    verify = next(service for service in planned if service.role == "verify")
    assert verify.argv[1:] == ("-m", "workers.run", "verify", "--node", "verify-1")
    assert verify.env["OMP_NUM_THREADS"] == "3" and verify.env["PACELINE_NODE"] == "verify-1"
    assert all(service.env["OMP_WAIT_POLICY"] == "PASSIVE" for service in planned)
    bounded = {service.role for service in planned if service.env.get("MALLOC_ARENA_MAX") == "2"}
    assert bounded == {"web"}, "64 prompts of 1 MiB left 1.9 GB there, now 0.5"
    assert planned[-1].argv[-1] == "8123" and planned[-1].stop_order < verify.stop_order


def test_placement_together_runs_one_engine() -> None:
    planned = services(Settings().changed(placement="together", verify_threads=1, draft_threads=3), 8123)
    engine = next(service for service in planned if "draft" in service.roles)
    assert engine.roles == ("verify", "draft") and engine.argv[3] == "engine"
    assert engine.env["OMP_NUM_THREADS"] == "3"
    assert [service for service in planned if "verify" in service.roles] == [engine]
    alone = services(Settings().changed(placement="together", drafters=()), 8123)
    assert "engine" not in {argument for service in alone for argument in service.argv}  # nothing to be together with


def test_placement_nodes_runs_a_process_for_each_drafter() -> None:
    planned = services(Settings().changed(placement="nodes", drafters=("smol-general", "smol-code")), 8123)
    nodes = {service.name: service.env["PACELINE_DRAFTERS"] for service in planned if service.role == "draft"}
    assert nodes == {"draft-smol-general": "smol-general", "draft-smol-code": "smol-code"}
    assert {"fuse", "verify"} < {service.role for service in planned}
    assert {s.name for s in services(Settings(plan="cosine", drafters=("smol-general", "smol-code")), 8123)} == {
        service.name for service in planned
    }, "CoSine's drafters are on nodes of their own"
    twice = services(Settings().changed(placement="nodes", drafters=("/a/d", "/b/d")), 8123)
    assert len({service.name for service in twice if service.role == "draft"}) == 2, "names are not shared"


def test_without_drafters_no_draft_worker_runs() -> None:
    assert "draft" not in {service.role for service in services(Settings(drafters=()), 8123)}


def test_namespace_is_unique_in_a_shared_redis(tmp_path: Path) -> None:
    one, two = Instance(tmp_path, "one"), Instance(tmp_path, "two")
    shared = Settings(redis_url="redis://x")
    assert namespace(shared, one) != namespace(shared, two)
    assert namespace(shared, one) == namespace(shared, Instance(tmp_path, "one"))
    assert namespace(Settings(redis_url="redis://x", namespace="team"), one) == "team"
    assert namespace(Settings(), one) == namespace(Settings(), two)  # each has a Redis to itself
    Settings(namespace=namespace(shared, Instance(tmp_path, "x" * 20)))  # still a valid one
