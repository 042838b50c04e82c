"""The one TOML file of settings: where it is looked for, and what it says.

`PACELINE_CONFIG` names it; else `paceline.toml` where the command runs, else `~/.config/paceline/config.toml` (or below
XDG_CONFIG_HOME). The first that is there is read, and no other. Its keys are the settings' names; a variable of the
environment beats its key.
"""

import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from app.errors import InvalidSettings

VARIABLE = "PACELINE_CONFIG"
NONE = {VARIABLE: "/dev/null"}  # for processes that are given every setting in their environment


def find_file(environ: Mapping[str, str]) -> Path | None:
    """The file to read. One that is named is the one, there or not."""
    if (named := named_file(environ)) is not None:
        return named
    places = (Path("paceline.toml"), home_of(environ, "XDG_CONFIG_HOME", ".config") / "paceline" / "config.toml")
    return next((place.absolute() for place in places if place.is_file()), None)


def named_file(environ: Mapping[str, str]) -> Path | None:
    """The file that the environment names."""
    named = environ.get(VARIABLE)
    return Path(named).expanduser().absolute() if named else None


def read_file(file: Path, known: Collection[str]) -> dict[str, Any]:
    """What it says, by setting; values are not looked at. Raises InvalidSettings: no file, no TOML, no such setting."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is no TOML: {error}") from error
    if unknown := [name for name in values if name not in known]:
        raise InvalidSettings("\n".join(f"{file}: {name}: no such setting{_meant(name, known)}" for name in unknown))
    return values


def home_of(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    """One of the folders of the XDG base directories; a relative one does not count, as that specification says."""
    named = Path(environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / usual


def _meant(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f"; {close[0]}, perhaps" if close else "; `paceline config` lists them"
