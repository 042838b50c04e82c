"""`paceline config`: every setting with unit, default, what holds now and where that is from, and what it does."""

import argparse
import json
import os
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from app.cli.run import Commands
from app.config import FILE_VARIABLE, LISTS, PREFIX, THREAD_ENVIRONMENT, Settings, find_file, read_file


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """`value` is what holds now, `source` where that is from: default, environment, or the file's path."""

    name: str  # the environment variable
    group: str
    unit: str  # or what may be given, and the bounds
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
    """Add it to the command line."""
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
        print(json.dumps([asdict(knob) for knob in found], indent=1))
        return 0
    for group, title in GROUPS.items():
        print(f"{title}\n")
        for knob in found:
            if knob.group == group:
                print(_lines(knob))
        print()
    print(f"file of settings: {find_file(os.environ) or 'none'}")
    for text in unknown_variables(os.environ):
        print(f"! {text}")
    return 0


def _lines(knob: SettingInfo) -> str:
    default = "absent" if knob.default is None else knob.default or "''"
    now = "" if knob.source == "default" else f"; now {knob.value}, from {knob.source}"
    return f"  {knob.name}  ({knob.unit}; default {default}{now})\n      {knob.effect}"


UNITS = {  # by how a number's name ends
    "_s": "seconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_requests": "requests",
    "_readers": "streams",
    "_sequences": "sequences",
    "_strikes": "verifiers",
    "_per_sequence": "drafters",
    "_threads": "cores",
    "partition": "cores, multiprocessors",
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
    """All of them as they stand. Raises InvalidSettings."""
    environ = os.environ if environ is None else environ
    file = find_file(environ)
    known = Settings.model_fields
    in_file = {} if file is None else read_file(file, known)
    settings = Settings.from_env({**environ, FILE_VARIABLE: str(file or os.devnull)})
    given = Settings.given(environ)
    found = []
    for name, field in known.items():
        source = "environment" if name in given else str(file) if name in in_file else "default"
        knob = _setting(name, field)
        found.append(_as_it_stands(knob, _text(getattr(settings, name)), source))
    for knob in OTHERS:
        text = environ.get(knob.name)
        found.append(_as_it_stands(knob, text or knob.default, "environment" if text else "default"))
    return found


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """PACELINE_* variables that nothing reads, each with what may have been meant."""
    known = [PREFIX + name.upper() for name in Settings.model_fields] + [knob.name for knob in OTHERS]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            close = get_close_matches(name, known, n=1)
            yield f"{name} is read by nothing" + (f"; {close[0]}, perhaps" if close else "")


def _setting(name: str, field: FieldInfo) -> SettingInfo:
    return SettingInfo(
        PREFIX + name.upper(), SETTINGS, _unit(name, field), _text(field.default), field.description or ""
    )


def _as_it_stands(knob: SettingInfo, value: str | None, source: str) -> SettingInfo:
    secret = knob.name.endswith(("_PASSWORD", "_SECRET", "_TOKEN"))
    shown = "***" if secret and source != "default" else _without_password(value)
    return replace(knob, value=shown, source=source)


def _without_password(text: str | None) -> str | None:
    return None if text is None else re.sub(r"://[^/@]*@", "://***@", text)


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _unit(name: str, field: FieldInfo) -> str:
    kind = _kind(field.annotation)
    if name in LISTS:
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


def _kind(annotation: Any) -> Any:
    """The type of a value that is given."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _kind(next(one for one in get_args(annotation) if one is not type(None)))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _others(group: str, *rows: tuple[str, str, str | None, str]) -> list[SettingInfo]:
    return [SettingInfo(name, group, unit, default, effect) for name, unit, default, effect in rows]


OTHERS = [
    *_others(
        START,
        (FILE_VARIABLE, "path", None, "the TOML file of settings; absent: ./paceline.toml, else config.toml as below"),
        ("XDG_CONFIG_HOME", "path", "~/.config", "paceline/config.toml below it is the file of settings"),
        ("XDG_STATE_HOME", "path", "~/.local/state", "paceline/ below it is PACELINE_STATE of an installed package"),
        ("PACELINE_PYTHON", "path", None, "interpreter that ./paceline runs instead of its own environment's"),
        ("PYTHONPATH", "paths", None, "kept; the clone's folder is put before it"),
    ),
    *_others(
        PROCESS,
        *((name, "as its library says", value, "how threads wait") for name, value in THREAD_ENVIRONMENT.items()),
        ("OMP_NUM_THREADS", "cores", None, "threads of products; `up` sets it to the role's _THREADS"),
        ("MKL_NUM_THREADS", "cores", None, "the same"),
        ("HF_HUB_OFFLINE", "0 | 1", "1", "0 lets transformers ask its hub for what a model's folder lacks"),
        ("NUMBA_CACHE_DIR", "path", None, "where the CPU's compiled kernels are kept; absent: beside their sources"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "name=value,...", None, "sent to the collector of traces"),
        ("TQDM_DISABLE", "0 | 1", "1", "0 shows transformers' own bars"),
    ),
    *_others(
        COMPOSE,
        ("PACELINE_REDIS_PASSWORD", "text", "paceline", "of Redis"),
        ("PACELINE_BIND", "address", "127.0.0.1", "where ports are published"),
        ("PACELINE_PORT", "port", "8000", "of the page"),
        ("PACELINE_PROXY_PORT", "port", "8080", "of the proxy before several web servers"),
        ("PACELINE_FLOWER_PORT", "port", "5555", "of Flower"),
        ("PACELINE_PROMETHEUS_PORT", "port", "9090", "of Prometheus"),
        ("PACELINE_GRAFANA_PORT", "port", "3000", "of Grafana"),
        ("PACELINE_FLOWER_PASSWORD", "text", "paceline", "of Flower's user paceline"),
        ("PACELINE_GRAFANA_PASSWORD", "text", "paceline", "of Grafana's user admin"),
        ("PACELINE_IMAGE", "name", "paceline", "the image that is built or taken"),
        ("PACELINE_BUILD_NETWORK", "network", "default", "host: where only the host's network reaches a registry"),
        ("TORCH_INDEX", "URL", None, "package index with another build of torch, at build time"),
    ),
    *_others(
        MEASURE,
        ("PACELINE_TEST_MODEL", "path", None, "the default target's folder, for tests that must not fetch it"),
        ("PACELINE_CHAOS_CLOCK", "path", None, "file of the seconds by which `chaos` lets a process' clock be off"),
        ("PACELINE_FUZZ", "examples", "5", "damaged model folders that a test tries"),
        ("CI", "true", None, "tests that lack a tool fail instead of being skipped"),
        ("TRITON_INTERPRET", "0 | 1", "0", "1 runs the GPU's kernels without one (bench/gpu/run.py, tests)"),
        ("VLLM_CPU_KVCACHE_SPACE", "GiB", "2", "of the rival in bench/peers"),
        ("VLLM_CPU_OMP_THREADS_BIND", "cores", None, "of the same; by default those it is given"),
    ),
]  # fmt: skip
