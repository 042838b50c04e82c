"""`paceline config`: list every setting with unit, default, present value, its source, and effect."""

import argparse
import json
import os
import types
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from app.cli.run import Commands
from app.config import FILE_VARIABLE, THREAD_ENVIRONMENT, Settings, as_text, find_file, read_file, variable
from app.plans import PARTS, Plan
from app.redis_url import without_password
from app.variables import GROUPS, OTHERS, PROCESS, SETTINGS


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """Describe one variable; `source` is default, environment, the plan, or the path of the file."""

    name: str  # the environment variable
    group: str
    unit: str  # or the values to choose from, and the bounds
    default: str | None  # None: absent
    effect: str
    value: str | None = None
    source: str = "default"


TEXT = """\
List every setting by topic: its present value, where that is from, its default, unit and effect; then the plan's parts.

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
        print(title)
        for info in (info for info in found if info.group == group):
            if (section := SECTIONS.get(info.name)) is not None:
                print(f"\n {section}\n")
            print(_lines(info))
        print()
    print(f"Parts of the plan {settings.plan.name}: PACELINE_PLAN or --plan names another, or a file with changes\n")
    changed = settings.plan.changes()
    for name in sorted(PARTS):
        print(f"  {name} = {as_text(getattr(settings.plan, name))}{'  (changed)' if name in changed else ''}")
    print(f"\nfile of settings: {find_file(os.environ) or 'none'}")
    return 0


def _lines(info: SettingInfo) -> str:
    if info.value is None:
        return f"  {info.name} is not set  ({info.unit})\n      {info.effect}"
    source = info.source
    if source != "default":
        source = f"from {source}" + ("" if info.default is None else f", default {info.default or repr('')}")
    return f"  {info.name} = {info.value or repr('')}  ({source}; {info.unit})\n      {info.effect}"


SECTIONS = {  # by the first of each, in the order of `Settings`
    variable(first): title
    for first, title in {
        "home": "Files and Redis",
        "model": "The target",
        "plan": "Speculation",
        "node": "A worker's place",
        "keys": "The web server, and who may call",
        "max_prompt_tokens": "Requests",
        "lease_s": "Workers: leases, cores, memory",
        "steer_log": "Logs and traces",
    }.items()
}


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
    "_share": "fraction",
    "_parallel": "devices",
}
WAIT = "how threads wait"
BOUNDS = {Ge: ">=", Gt: ">", Le: "<=", Lt: "<"}


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
        if source == "default" and name in PARTS:
            source = f"the plan {settings.plan.name}"
        default = _text(None if field.default_factory else field.default)
        value = _masked(_text(getattr(settings, name)))
        found.append(
            SettingInfo(variable(name), SETTINGS, unit_of(name, field), default, field.description or "", value, source)
        )
    threads = ((PROCESS, name, "as its library says", value, WAIT) for name, value in THREAD_ENVIRONMENT.items())
    for group, name, unit, usual, effect in (*threads, *OTHERS):
        text = environ.get(name)
        is_secret = text and name.endswith(("_PASSWORD", "_SECRET", "_TOKEN"))
        shown = "***" if is_secret else _masked(text or usual)
        found.append(SettingInfo(name, group, unit, usual, effect, shown, "environment" if text else "default"))
    return found


def _masked(text: str | None) -> str | None:
    return None if text is None else without_password(text)


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
