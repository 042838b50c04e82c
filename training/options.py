"""Parse and check the flags of `./paceline train`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.errors import InvalidRequest, validation_message

PROMPTS = 400  # of each domain, if no flag names data
MINUTES = 30.0
HEAD = 8192
TEXT = """\
Distil a drafter for a target, from the target's own answers or from other text that it reads, and measure it.

1. Data: `--prompts N` lets the target answer N prompts of each domain (code, math, chat, prose, qa); `--text PATH` lets
   it read files; `--data PATH` takes what is there already. Without any of them: --prompts 400. What is made is kept
   and taken up again, so a second drafter for the same target starts at once.
2. Training: layers of the target, its embedding frozen, its head cut to the most frequent tokens, learn what the target
   would say next. `--domains D --others 0` makes an expert of one domain; `--init FOLDER` goes on from another drafter.
3. Measuring on prompts that were kept out: how often the first draft token is right, tokens a round at 4 drafted.

Any of it can be killed; the same command goes on where it was, and ends with the same weights as if it had not been.
"""


class Options(BaseModel):
    """The settings of one training. Lengths are in tokens unless stated otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: Path = Field(description="folder to write the drafter to; also holds the checkpoint while it is trained")
    target: str | None = Field(None, description="the target: a known name or a model folder; else PACELINE_MODEL")
    prompts: int | None = Field(None, ge=1, description="let the target answer so many prompts of each domain")
    max_tokens: int = Field(144, ge=8, le=768, description="longest answer")
    text: tuple[str, ...] = Field((), description="[DOMAIN=]PATH: let the target read a file or a folder of them")
    windows: int = Field(2000, ge=1, description="at most so many pieces of 192 tokens of each --text")
    data: tuple[Path, ...] = Field((), description="rows made before: .jsonl files, or folders of them")
    made: Path | None = Field(None, description="folder for the data made; else one a target below PACELINE_HOME")
    domains: tuple[str, ...] = Field((), description="learn mostly these, comma-separated")
    others: float = Field(0.15, ge=0.0, le=1.0, description="part kept of the rows of other domains than these")
    features: bool = Field(True, description="do not let the drafter read the target's last hidden state")
    init: str | None = Field(None, description="drafter to go on from: a name in drafters/ or a folder")
    scratch: bool = Field(False, description="start from noise instead of what the target's layers know")
    layers: tuple[int, ...] = Field((0, -1), min_length=1, description="target layers to start from")
    head: int = Field(HEAD, ge=2, description="tokens the drafter can say")
    steps: int | None = Field(None, ge=1, description="steps to train for")
    minutes: float | None = Field(
        None, gt=0.0, description="or minutes in steps, at the pace of the first ones; else 30"
    )
    batch: int = Field(12, ge=1, description="rows a step")
    rate: float = Field(6e-4, gt=0.0, lt=1.0, description="peak learning rate (AdamW, warm-up, cosine)")
    negatives: int = Field(1024, ge=1, description="random tokens beside the batch's own that a step compares")
    seed: int = Field(0, ge=0, description="of prompts, sampling, batches")
    threads: int = Field(2, ge=1, description="CPU threads to train with")
    held_out: int = Field(16, ge=1, description="rows of each domain to measure on, of those kept out")
    save_s: float = Field(60.0, ge=0.0, description="seconds between checkpoints")
    restart: bool = Field(False, description="leave the checkpoint or the drafter that is in --out, and start anew")

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.minutes is not None:
            raise ValueError("give either --steps or --minutes")
        if self.scratch and self.init is not None:
            raise ValueError("give either --scratch or --init")
        if "others" in self.model_fields_set and not self.domains:
            raise ValueError("give --domains with --others")
        return self

    @property
    def prompts_wanted(self) -> int:
        """Return how many prompts of each domain the target is to answer."""
        return self.prompts or (0 if self.data or self.text else PROMPTS)


def parse(words: Sequence[str] | None = None) -> Options:
    """Parse the command line. Raises InvalidRequest, naming the flag; SystemExit as argparse does."""
    parser = argparse.ArgumentParser(
        prog="paceline train", description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shapes: dict[str, dict[str, object]] = {
        "out": {"required": True},
        "text": {"nargs": "+", "metavar": "[DOMAIN=]PATH"},
        "data": {"nargs": "+", "metavar": "PATH"},
        "layers": {"nargs": "+", "metavar": "LAYER"},
        "features": {"flag": "--no-features", "action": "store_false"},
        "restart": {"action": "store_true"},
        "scratch": {"action": "store_true"},
    }
    for name, field in Options.model_fields.items():
        shape = {"default": argparse.SUPPRESS, **shapes.get(name, {})}
        flag = str(shape.pop("flag", "--" + name.replace("_", "-")))
        if "action" not in shape:
            shape.setdefault("metavar", name.upper())
        is_shown = field.default is not None and not field.is_required() and field.default not in ((), True, False)
        text = f"{field.description}{f' ({_shown(field.default)})' if is_shown else ''}"
        parser.add_argument(flag, dest=name, help=text, **shape)  # type: ignore[arg-type]
    values = vars(parser.parse_args(words))
    if isinstance(values.get("domains"), str):
        values["domains"] = tuple(name for name in values["domains"].split(",") if name)
    try:
        return Options.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "usage"
        raise InvalidRequest(where, validation_message(first)) from error


def _shown(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
