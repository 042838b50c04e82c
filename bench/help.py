"""Make the argument parsers of the benchmarks' commands: one kind for all, which shows every flag's default."""

import argparse
from pathlib import Path

from app.config import ROOT


def parser(name: str, doc: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser of `./paceline NAME`, described by the first paragraph of `doc`, a module's docstring."""
    summary = (doc or "").split("\n\n")[0]
    return argparse.ArgumentParser(
        prog=f"paceline {name}", description=summary, epilog=epilog, formatter_class=Defaults
    )


def count(text: str) -> int:
    """Read a number of things for a flag, at least 1. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return number


class Defaults(argparse.RawDescriptionHelpFormatter):
    """A help formatter that adds a flag's default to its help, where it has one and does not say so itself."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        has_one = not (action.default is None or action.default is False or action.default is argparse.SUPPRESS)
        if not action.option_strings or not has_one or "default" in text:
            return text
        return f"{text} (default: {_shown(action.default)})".lstrip().replace("%", "%%")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, Path) and value.is_relative_to(ROOT):
        return str(value.relative_to(ROOT))
    return str(value)
