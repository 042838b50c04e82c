"""`paceline config`: every setting with unit, default, what holds now and where that is from, and what it does."""

import argparse
import json
import os
from dataclasses import asdict

from app.cli.run import Commands
from app.config import Settings
from app.config_file_zz import find_file
from app.knobs import GROUPS, Knob, knobs, strangers

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
    found = knobs()
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
    for text in strangers(os.environ):
        print(f"! {text}")
    return 0


def _lines(knob: Knob) -> str:
    default = "absent" if knob.default is None else knob.default or "''"
    now = "" if knob.source == "default" else f"; now {knob.value}, from {knob.source}"
    return f"  {knob.name}  ({knob.unit}; default {default}{now})\n      {knob.effect}"
