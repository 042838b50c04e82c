"""How the benchmarks' commands explain themselves: one parser for all, which says every flag's default."""

import argparse
from pathlib import Path

from app.config import ROOT


def parser(name: str, doc: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser of `./paceline NAME`, described by a module's first paragraph."""
    told = (doc or "").split("\n\n")[0]
    return argparse.ArgumentParser(prog=f"paceline {name}", description=told, epilog=epilog, formatter_class=Defaults)


class Defaults(argparse.RawDescriptionHelpFormatter):
    """Adds a flag's default to its help, where it has one and does not say so itself."""

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
