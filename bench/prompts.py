"""Hold the benchmarks' prompts of five domains, and read others from a file."""

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from app.errors import validation_message

Prompts = Mapping[str, tuple[str, ...]]  # by domain
_OWN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PROMPTS: Prompts = {domain: tuple(texts) for domain, texts in _OWN.items()}


class Question(BaseModel):
    """A line of Spec-Bench's form."""

    turns: Annotated[list[Annotated[str, Field(pattern=r"\S")]], Field(min_length=1)]
    category: str | None = None


def add_prompts_file(parser: argparse.ArgumentParser) -> None:
    """Add the option that replaces our prompts; it gives `Prompts`."""
    parser.add_argument(
        "--prompts-file",
        dest="texts",
        metavar="FILE",
        type=read_prompts,
        default=PROMPTS,
        help="JSON lines of Spec-Bench's form, turns and category, whose first turns are asked (default: our prompts)",
    )


def read_prompts(path: str) -> dict[str, tuple[str, ...]]:
    """Read JSON lines with `turns`, a list whose first text is asked, and perhaps `category`: the domain.

    Without one the file's name is the domain. Raises argparse.ArgumentTypeError, with the line.
    """
    found: dict[str, list[str]] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                one = Question.model_validate_json(line)
            except ValidationError as error:
                text = validation_message(error.errors()[0])
                raise argparse.ArgumentTypeError(f"{path}, line {number}: no object with turns: {text}") from error
            found.setdefault(one.category or Path(path).stem, []).append(one.turns[0])
    if not found:
        raise argparse.ArgumentTypeError(f"{path} holds no prompts")
    return {domain: tuple(texts) for domain, texts in found.items()}
