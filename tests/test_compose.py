"""Check that compose.yaml names existing settings, modules and roles, and does not publish Redis."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config import PREFIX, ROOT, Settings
from app.plans import PLANS
from web.server import NOTICE_S
from workers.run import ROLES

TEXT = (ROOT / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SERVICES = yaml.safe_load(TEXT)["services"]
MONITORING = {"prometheus", "grafana"}
GPU, VLLM = "verify-gpu", "verify-vllm"
DRAFTERS = {"draft-general", "draft-code", "draft-prose", "draft-chat"}
COOPERATE = DRAFTERS | {f"{role}-cooperate" for role in ("web", "control", "fuse", "verify", "beat")}
PROXY = "proxy"
OURS = {name: service for name, service in SERVICES.items() if name not in {"redis", PROXY, *MONITORING}}
HARDENED = {"redis", *OURS}
SECRET = """s3cret 'c"r\\e$t"""
MODULES = OURS.keys() - {"flower"}  # that one is Celery's command
PUBLISHED = {"web", "web-cooperate", PROXY, "flower", *MONITORING}
OF_COMPOSE = {"BIND", "PORT", "COOPERATE_PORT", "IMAGE", "BUILD_NETWORK"}
OF_COMPOSE |= {f"{name.upper()}_PORT" for name in PUBLISHED - {"web", "web-cooperate"}}
OF_COMPOSE |= {f"{name.upper()}_PASSWORD" for name in PUBLISHED - {"web", "web-cooperate", PROXY}}


def test_every_role_has_a_service_and_a_health_check() -> None:
    roles = set(ROLES) - {"engine"}  # verify and draft in one process, where containers scale them apart
    assert roles | {"web", "model", GPU, VLLM} == MODULES - COOPERATE
    for role in roles:
        assert f"workers.run {role} " in OURS[role]["command"][-1]
        assert f"workers.healthcheck {role} " in OURS[role]["healthcheck"]["test"][-1]


def test_environment_variables_are_settings() -> None:
    for service in OURS.values():
        given = {name.removeprefix(PREFIX).lower() for name in service["environment"] if name.startswith(PREFIX)}
        assert given <= Settings.model_fields.keys()
    read = set(re.findall(r"\$\{PACELINE_(\w+)", TEXT))
    assert {name.lower() for name in read - OF_COMPOSE} <= Settings.model_fields.keys()


def composed(folder: Path, **environ: str) -> dict[str, Any]:
    """The services as Compose makes them: variables replaced, anchors merged."""
    command = [["docker-compose"], ["docker", "compose"]][shutil.which("docker-compose") is None]
    if shutil.which(command[0]) is None:
        if os.environ.get("CI") == "true":
            pytest.fail("docker-compose is not installed")
        pytest.skip("no docker-compose here")
    no_file = folder / "empty.env"
    no_file.touch()
    clean = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "COMPOSE_"))}
    done = subprocess.run(
        [*command, "--file", "compose.yaml", "--env-file", str(no_file), "config"],
        cwd=ROOT,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return services


def test_a_default_holds_no_variable() -> None:
    """docker-compose 1.29 ends a default at the first brace."""
    assert re.findall(r"\$\{\w+:?-[^}]*\$.*", TEXT) == []


@pytest.mark.parametrize(
    "environ, url",
    [
        ({}, "redis://:paceline@redis:6379/0"),
        ({"PACELINE_REDIS_PASSWORD": "s3/cret"}, "redis://:s3%2Fcret@redis:6379/0"),
        ({"PACELINE_REDIS_URL": "rediss://:own@elsewhere:7000/1"}, "rediss://:own@elsewhere:7000/1"),
    ],
)
def test_each_service_gets_settings_that_it_can_read(environ: dict[str, str], url: str, tmp_path: Path) -> None:
    services = composed(tmp_path, **environ)
    assert {"web", "verify", "beat", "redis"} <= services.keys()
    for name in services.keys() & OURS.keys():
        # `config` writes a file that is read again: a dollar is doubled, and a number is no text.
        given = {key: str(value).replace("$$", "$") for key, value in services[name]["environment"].items()}
        settings = Settings.from_env(given)
        assert (settings.redis_url, settings.model) == (url, "smollm2-135m"), name
        assert services[name]["build"]["target"] == {GPU: "gpu", VLLM: "vllm"}.get(name, "served"), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services of all profiles, with the passwords SECRET."""
    given = {"PACELINE_REDIS_PASSWORD": SECRET, "PACELINE_FLOWER_PASSWORD": SECRET}
    return composed(tmp_path_factory.mktemp("whole"), COMPOSE_PROFILES="cooperate,gpu,vllm,flower", **given)


def test_containers_write_to_volumes_alone_and_have_no_rights(whole: dict[str, Any]) -> None:
    assert whole.keys() >= HARDENED
    for name in HARDENED:
        assert whole[name]["read_only"] is True and whole[name]["tmpfs"] == ["/tmp"], name
        assert whole[name]["cap_drop"] == ["ALL"] and "cap_add" not in whole[name], name
        assert whole[name]["security_opt"] == ["no-new-privileges:true"], name
    assert whole["redis"]["user"] == "redis"  # its image would begin as root
    assert re.findall(r"^USER (\w+)", DOCKERFILE, re.MULTILINE)[-1] == "paceline"


def test_no_password_stands_in_a_command_line(whole: dict[str, Any]) -> None:
    for name, service in whole.items():
        for words in (service.get("command"), service.get("healthcheck")):
            assert "s3cret" not in str(words) and "PASSWORD:-" not in str(words), name


def run(folder: Path, script: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a service's shell command with stand-ins that print what reaches the real programs."""
    printing = {"python": "echo redis://here", "celery": 'echo "$CELERY_BROKER_URL $*"', "redis-server": "cat"}
    for name, text in printing.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    command = ["sh", "-c", script.replace("$$", "$")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20, check=False)


def test_flower_starts_when_asked_and_with_a_password_alone(whole: dict[str, Any], tmp_path: Path) -> None:
    flower = OURS["flower"]
    assert flower["profiles"] == ["flower"]
    assert flower["environment"]["FLOWER_BASIC_AUTH"] == "paceline:${PACELINE_FLOWER_PASSWORD:-}"
    script = whole["flower"]["command"][-1]
    refused = run(tmp_path, script, FLOWER_BASIC_AUTH="paceline:")
    assert refused.returncode != 0 and "PACELINE_FLOWER_PASSWORD" in refused.stderr
    assert run(tmp_path, script, FLOWER_BASIC_AUTH="paceline:x").stdout.startswith("redis://here flower ")


def test_redis_gets_its_password_as_it_is(whole: dict[str, Any], tmp_path: Path) -> None:
    redis = whole["redis"]
    assert redis["environment"]["REDISCLI_AUTH"].replace("$$", "$") == SECRET
    done = run(tmp_path, redis["command"][-1], REDISCLI_AUTH=SECRET)
    assert json.loads(done.stdout.removeprefix("requirepass ")) == SECRET


def test_web_servers_have_few_heaps() -> None:
    assert {name for name in OURS if " MALLOC_ARENA_MAX=2 " in OURS[name]["command"][-1]} == {"web", "web-cooperate"}


def test_every_setting_reaches_the_containers() -> None:
    """But those that containers have by their nature: folders, names, what `up` starts, and a caller's own key."""
    own = {"home", "state", "node", "api_key", "host", "vllm_python"}
    given = {name.removeprefix(PREFIX).lower() for service in OURS.values() for name in service["environment"]}
    assert Settings.model_fields.keys() - own <= given
    everywhere = {name.removeprefix(PREFIX).lower() for name in OURS["verify"]["environment"]}
    of_one = {
        "keys",
        "hosts",
        "origins",
        "served_name",
        "open_metrics",
        "drain_s",
        "device",
        "gpu_dtype",
        "vllm_arguments",
        "vllm_dtype",
        "tensor_parallel",
        "pipeline_parallel",
    }  # the web server, and verifiers of other kinds
    assert Settings.model_fields.keys() - own - of_one <= everywhere


def test_cosines_plan_is_a_deployment_of_its_own_with_a_node_for_each_drafter() -> None:
    own = {name: service for name, service in OURS.items() if service.get("profiles") == ["cooperate"]}
    assert own.keys() == COOPERATE
    nodes = [own[f"draft-{drafter.removeprefix('smol-')}"] for drafter in PLANS["cosine"].drafters]
    assert [node["environment"]["PACELINE_DRAFTERS"] for node in nodes] == [*PLANS["cosine"].drafters]
    for name, service in own.items():
        usual = OURS["draft" if name in DRAFTERS else name.removesuffix("-cooperate")]
        other = ["environment", "profiles", *(["ports", "command"] if name == "web-cooperate" else [])]
        assert {**service, **dict.fromkeys(other)} == {**usual, **dict.fromkeys(other)}
        given = service["environment"]
        assert given["PACELINE_PLAN"] == "cosine"
        assert given["PACELINE_NAMESPACE"] == given["PACELINE_QUEUE"] == "cooperate"
    compiling = (
        *nodes,
        *(OURS[name] for name in ("verify-cooperate", "fuse-cooperate", "draft", "verify", "fuse", GPU, VLLM)),
    )
    folders = [one["environment"]["NUMBA_CACHE_DIR"] for one in compiling]
    assert len(set(folders)) == len(folders), "numba's index does not take two that write at once"


def services_of(script: str) -> list[str]:
    """The services that a script of `deploy` is for, if none is named."""
    text = (ROOT / "deploy" / script).read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"set -- (.*)", text)
    return str(listed).split()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_exist(name: str) -> None:
    words = " ".join(OURS[name]["command"])
    (module,) = re.findall(r"-m ([\w.]+)", words)
    assert importlib.util.find_spec(module) is not None


def test_redis_is_not_published_and_requires_a_password() -> None:
    assert "ports" not in SERVICES["redis"] and "requirepass" in SERVICES["redis"]["command"][-1]
    networks = yaml.safe_load(TEXT)["networks"]
    assert [networks[name] for name in SERVICES["redis"]["networks"]] == [{"internal": True}]
    assert {name for name, service in SERVICES.items() if "ports" in service} == PUBLISHED
    for name in PUBLISHED:
        assert SERVICES[name]["ports"][0].startswith("${PACELINE_BIND:-127.0.0.1}")


def test_monitoring_is_optional_with_pinned_images_and_existing_mounts() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["monitoring"]} == MONITORING
    for name in MONITORING:
        assert re.search(r":v?\d+\.\d+\.\d+$", SERVICES[name]["image"])
        mounted = [volume.split(":")[0] for volume in SERVICES[name]["volumes"] if volume.startswith("./")]
        assert mounted and all((ROOT / path).exists() for path in mounted)


def test_prometheus_scrapes_the_web_server_by_its_name() -> None:
    (scraped,) = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    ((target,),) = [config["targets"] for config in scraped["static_configs"]]
    assert f"--name {target.split(':')[0]}" in SERVICES["web"]["command"][-1]


def test_the_gpu_verifier_is_optional_and_else_like_the_other() -> None:
    ours, other = SERVICES[GPU], SERVICES["verify"]
    assert ours["profiles"] == ["gpu"] and "profiles" not in other
    (device,) = ours["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    changed = {name for name, value in ours["environment"].items() if other["environment"].get(name) != value}
    assert changed == {
        "PACELINE_DEVICE",
        "PACELINE_GPU_DTYPE",
        "PACELINE_MACHINE",
        "TRITON_CACHE_DIR",
        "NUMBA_CACHE_DIR",
    }
    node = ours["healthcheck"]["test"][-1].split()[-1]
    assert f"workers.run verify --node {node}" in ours["command"][-1]


def test_the_gpu_verifiers_image_can_launch_kernels_and_keeps_them() -> None:
    ours, other = SERVICES[GPU], SERVICES["verify"]
    assert ours["build"] == other["build"] | {"target": "gpu"} and ours["image"] == f"{other['image']}-gpu"
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    (gpu,) = [stage for stage in stages if stage.startswith("served AS gpu\n")]
    assert {"gcc", "libc6-dev"} <= set(gpu.split()) and "torch.version.cuda" in gpu
    assert re.findall(r"^USER (\w+)", gpu, re.MULTILINE) == ["root", "paceline"]
    assert other["build"]["target"] == "served" and stages[-1] == "served\n"  # the default image has no compiler
    (volume,) = re.findall(r"^VOLUME (\S+)", DOCKERFILE, re.MULTILINE)
    assert ours["volumes"] == [f"models:{volume}"] and ours["environment"]["TRITON_CACHE_DIR"].startswith(f"{volume}/")


def test_the_verifier_on_vllm_is_optional_and_has_an_environment_of_its_own() -> None:
    ours, other = OURS[VLLM], OURS["verify"]
    assert ours["profiles"] == ["vllm"] and ours["environment"]["PACELINE_ENGINE"] == "vllm"
    assert ours["build"] == other["build"] | {"target": "vllm"} and ours["image"] == f"{other['image']}-vllm"
    (folder,) = re.findall(r"python3 -m venv (\S+) && \1/bin/pip install \$.* \\\n.*app/engine/vllm/req", DOCKERFILE)
    assert (
        f"{folder}/bin/python -m workers.run verify " in ours["command"][-1]
        and f"={folder}/lib/" in ours["command"][-1]
    )


def test_a_rolling_restart_covers_all_services_that_may_run_twice() -> None:
    listed = services_of("rolling-restart.sh")
    assert sorted(listed) == sorted(OURS.keys() - {"model", "flower", GPU})  # made once; its port is one; its GPU
    assert all("healthcheck" in OURS[name] and "container_name" not in OURS[name] for name in listed)
    names = [re.findall(r"(?:--node |PACELINE_NODE=)(\S+)", OURS[name]["command"][-1])[0] for name in listed]
    # The second waits for the first to end.
    assert [name for name in names if "$$HOSTNAME" not in name] == ["beat-1"] * 2


def test_a_drill_covers_all_services_that_may_die_unnoticed() -> None:
    listed = services_of("drill.sh")
    assert sorted(listed) == sorted({*OURS, "redis"} - {"model", "web", "web-cooperate", "flower", GPU})
    assert all("healthcheck" in SERVICES[name] for name in listed)
    assert all(SERVICES[name]["restart"] == "unless-stopped" for name in listed)


def test_the_proxy_bounds_a_client_and_a_web_server_has_time_to_announce_its_end() -> None:
    proxy = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
    ((seconds, times),) = re.findall(r"check inter (\d+)s fall (\d+) ", proxy)
    assert int(seconds) * int(times) < NOTICE_S and " web:8000 " in proxy and "GET /healthz" in proxy
    most, of_one = (int(re.findall(form, proxy)[0]) for form in (r"maxconn (\d+)", r"sc_conn_cur\(0\) gt (\d+)"))
    assert of_one <= most / 4, "a client must not shut the door to others"
    (drain,) = re.findall(r":-(\d+)}", OURS["web"]["environment"]["PACELINE_DRAIN_S"])
    assert NOTICE_S < int(drain) < int(OURS["web"]["stop_grace_period"].removesuffix("s"))


def test_files_copied_into_the_image_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE)
    assert {"app", "kernels", "workers", "web", "drafters"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
