"""`paceline config`: list every setting with unit, default, present value, its source, and effect."""

import argparse
import json
import os
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from app.cli.run import Commands
from app.config import FILE_VARIABLE, PREFIX, THREAD_ENVIRONMENT, Settings, as_text, find_file, read_file, variable
from app.plans import Plan


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """Describe one variable; `source` is default, environment, or the path of the file."""

    name: str  # the environment variable
    group: str
    unit: str  # or the values to choose from, and the bounds
    default: str | None  # None: absent
    effect: str
    value: str | None = None
    source: str = "default"


TEXT = """\
List every setting with its unit, default, present value and where that is from, and its effect.

The environment beats the file. The file is TOML with the settings' names as keys, for example:

  model = "/models/target"
  drafters = ["smol-general", "smol-code"]
  lease_s = 2.0

PACELINE_CONFIG names it; else ./paceline.toml is read, else ~/.config/paceline/config.toml.
"""


def add_config(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "config",
        help="list every setting, with unit, default and effect",
        description=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    found = list_settings()
    if arguments.json:
        print(json.dumps([asdict(info) for info in found], indent=1))
        return 0
    for group, title in GROUPS.items():
        print(f"{title}\n", *(_lines(info) for info in found if info.group == group), "", sep="\n")
    changes = ", ".join(f"{name} {as_text(value)}" for name, value in settings.plan.changes().items())
    print(f"plan: {settings.plan.name}{f', but {changes}' if changes else ''}")
    print(f"file of settings: {find_file(os.environ) or 'none'}")
    for text in unknown_variables(os.environ):
        print(f"! {text}")
    return 0


def _lines(info: SettingInfo) -> str:
    default = "absent" if info.default is None else info.default or "''"
    now = "" if info.source == "default" else f"; now {info.value}, from {info.source}"
    return f"  {info.name}  ({info.unit}; default {default}{now})\n      {info.effect}"


UNITS = {  # by the end of a number's name
    "_s": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_requests": "requests",
    "_sequences": "sequences",
    "_threads": "cores",
    "_per_sequence": "drafters",
    "partition": "cores, multiprocessors | auto",
    "_part": "fraction",
}
BOUNDS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}
SETTINGS, START, PROCESS, COMPOSE, MEASURE = "settings", "start", "processes", "compose", "measuring"
GROUPS = {
    SETTINGS: "Settings: environment variables, or keys of the file (in small letters, without PACELINE_)",
    START: "How a command starts: environment only",
    PROCESS: "Of other libraries: read or set in each process; environment only, set by `up` for what it starts",
    COMPOSE: "Of compose.yaml and the image: environment or .env, beside the settings",
    MEASURE: "Of tests and benchmarks",
}


def list_settings(environ: Mapping[str, str] | None = None) -> list[SettingInfo]:
    """List all variables with their present values. Raises InvalidSettings."""
    environ = os.environ if environ is None else environ
    file = find_file(environ)
    in_file = {} if file is None else read_file(file, Settings.model_fields)
    settings = Settings.from_env({**environ, FILE_VARIABLE: str(file or os.devnull)})
    given = Settings.given(environ)
    found = []
    for name, field in Settings.model_fields.items():
        source = "environment" if name in given else str(file) if name in in_file else "default"
        default = _text(None if field.default_factory else field.default)
        value = _without_password(_text(getattr(settings, name)))
        found.append(
            SettingInfo(variable(name), SETTINGS, unit_of(name, field), default, field.description or "", value, source)
        )
    for group, name, unit, usual, effect in OTHERS:
        text = environ.get(name)
        is_secret = text and name.endswith(("_PASSWORD", "_SECRET", "_TOKEN"))
        shown = "***" if is_secret else _without_password(text or usual)
        found.append(SettingInfo(name, group, unit, usual, effect, shown, "environment" if text else "default"))
    return found


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Find PACELINE_* variables that nothing reads, each with the one that may have been meant."""
    known = [info.name for info in list_settings({FILE_VARIABLE: os.devnull})]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1)
            yield f"{name} is read by nothing" + (f"; {close[0]}, perhaps" if close else "")


def _without_password(text: str | None) -> str | None:
    return (
        None if text is None else re.sub(r"(?<=sentinel_password=)[^&]*", "***", re.sub(r"://[^/?]*@", "://***@", text))
    )


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)


def unit_of(name: str, field: FieldInfo) -> str:
    kind = bare_type(field.annotation)
    if kind is Plan:
        return "name | file"
    if get_origin(kind) is tuple:
        return "names, with commas between"
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if kind is bool:
        return "true | false"
    if kind in (int, float):
        unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "number")
        bounds = [f"{BOUNDS[type(one)]} {astuple(one)[0]}" for one in field.metadata if type(one) in BOUNDS]
        return " ".join([unit, " and ".join(bounds)]).strip()
    if kind is Path:
        return "path"
    return "URL" if name.endswith("_url") else "text"


def bare_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return bare_type(next(one for one in get_args(annotation) if one is not type(None)))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


# Variables that are no settings: group, name, unit, default, effect.
OTHERS: tuple[tuple[str, str, str, str | None, str], ...] = (
    (START, FILE_VARIABLE, "path", None, "file of settings, TOML; absent: ./paceline.toml, else config.toml as below"),
    (START, "XDG_CONFIG_HOME", "path", "~/.config", "paceline/config.toml below it is the file of settings"),
    (START, "XDG_STATE_HOME", "path", "~/.local/state", "paceline/ below it is PACELINE_STATE of an installed package"),
    (START, "PACELINE_PYTHON", "path", None, "interpreter that ./paceline runs instead of its own environment's"),
    (START, "PYTHONPATH", "paths", None, "kept; the clone's folder is put before it"),
    *((PROCESS, name, "as its library says", value, "how threads wait") for name, value in THREAD_ENVIRONMENT.items()),
    (PROCESS, "OMP_NUM_THREADS", "cores", None, "threads of products; `up` sets it to the role's _THREADS"),
    (PROCESS, "MKL_NUM_THREADS", "cores", None, "the same"),
    (PROCESS, "MALLOC_ARENA_MAX", "number", None, "heaps of glibc; `up` and compose.yaml set 2 for the web server"),
    (PROCESS, "HF_HUB_OFFLINE", "0 | 1", "1", "0 lets transformers ask its hub for what a model's folder lacks"),
    (PROCESS, "NUMBA_CACHE_DIR", "path", None, "folder of the CPU's compiled kernels; absent: beside their sources"),
    (PROCESS, "TRITON_CACHE_DIR", "path", "~/.triton/cache", "folder of the GPU's compiled kernels"),
    (PROCESS, "OTEL_EXPORTER_OTLP_HEADERS", "name=value,...", None, "sent to the collector of traces"),
    (PROCESS, "TQDM_DISABLE", "0 | 1", "1", "0 shows transformers' own bars"),
    (COMPOSE, "PACELINE_BIND", "address", "127.0.0.1", "where ports are published"),
    (COMPOSE, "PACELINE_PORT", "port", "8000", "of the page"),
    (COMPOSE, "PACELINE_COOPERATE_PORT", "port", "8001", "of the page of the profile `cooperate`"),
    (COMPOSE, "PACELINE_PROXY_PORT", "port", "8080", "of the proxy before several web servers"),
    (COMPOSE, "PACELINE_FLOWER_PORT", "port", "5555", "of Flower"),
    (COMPOSE, "PACELINE_PROMETHEUS_PORT", "port", "9090", "of Prometheus"),
    (COMPOSE, "PACELINE_GRAFANA_PORT", "port", "3000", "of Grafana"),
    (COMPOSE, "PACELINE_FLOWER_PASSWORD", "text", None, "of Flower's user paceline; without it Flower does not start"),
    (COMPOSE, "PACELINE_GRAFANA_PASSWORD", "text", "paceline", "of Grafana's user admin"),
    (COMPOSE, "PACELINE_IMAGE", "name", "paceline", "the image that is built or taken; -gpu after it: the GPU's"),
    (COMPOSE, "PACELINE_BUILD_NETWORK", "network", "default", "host: where only the host's network reaches a registry"),
    (COMPOSE, "TORCH_INDEX", "URL", None, "package index with another build of torch, at build time"),
    (MEASURE, "PACELINE_TEST_MODEL", "path", None, "the default target's folder, for tests that must not fetch it"),
    (MEASURE, "PACELINE_CHAOS_CLOCK", "path", None, "file of seconds by which `chaos` sets a process' clock off"),
    (MEASURE, "PACELINE_FUZZ", "examples", "5", "damaged model folders that a test tries"),
    (MEASURE, "CI", "true", None, "tests that lack a tool fail instead of being skipped"),
    (MEASURE, "TRITON_INTERPRET", "0 | 1", "0", "1 runs the GPU's kernels without one (bench/gpu/run.py, tests)"),
    (MEASURE, "VLLM_CPU_KVCACHE_SPACE", "GiB", "2", "of the rival in bench/peers"),
    (MEASURE, "VLLM_CPU_OMP_THREADS_BIND", "cores", None, "of the same; by default those it is given"),
)  # fmt: skip
