"""`paceline keys`: make, list and remove the API keys of the web server."""

import argparse
from collections.abc import Callable
from pathlib import Path

from app.api_keys import add_key, read_keys, remove_key
from app.config import Settings
from app.errors import InvalidRequest

TEXT = """\
The keys that the web server asks its callers for. Their hashes lie in the file that PACELINE_KEYS names; without
that setting no key is needed. A running server notices changes by itself.
"""


def add_keys(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    raw = argparse.RawDescriptionHelpFormatter
    keys = commands.add_parser("keys", help="make, list and remove API keys", description=TEXT, formatter_class=raw)
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = _action(actions, "add", _add, "make a key and print it, this once")
    add.add_argument("name", help="letters, digits, . _ -")
    add.add_argument("--tenant", help="keys of one tenant see each other's requests; by default the name")
    add.add_argument("--rate", type=_rate, metavar="N/min", help="texts asked for within any minute, at most")
    add.add_argument("--concurrent", type=int, metavar="N", help="texts under way at once, at most")
    _action(actions, "list", _list, "names, tenants and limits")
    remove = _action(actions, "remove", _remove, "refuse a key from now on")
    remove.add_argument("name")


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace, Settings], int],
    text: str,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _rate(text: str) -> int:
    number = text.removesuffix("/min")
    if not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError("the rate must be a number of texts a minute, such as 60/min")
    return int(number)


def _path(settings: Settings) -> Path:
    if settings.keys is None:
        raise InvalidRequest("PACELINE_KEYS", "must name the file of API keys")
    return settings.keys


def _add(arguments: argparse.Namespace, settings: Settings) -> int:
    key = add_key(
        _path(settings),
        arguments.name,
        tenant=arguments.tenant,
        rate_per_minute=arguments.rate,
        concurrent=arguments.concurrent,
    )
    print(key)
    return 0


def _list(arguments: argparse.Namespace, settings: Settings) -> int:
    for key in read_keys(_path(settings)):
        rate = "any" if key.rate_per_minute is None else f"{key.rate_per_minute}/min"
        print(f"{key.name}  tenant {key.tenant}  rate {rate}  at once {key.concurrent or 'any'}")
    return 0


def _remove(arguments: argparse.Namespace, settings: Settings) -> int:
    remove_key(_path(settings), arguments.name)
    return 0
