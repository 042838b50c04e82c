"""Explain what is wrong with a drafter's files before any model is loaded: loads no torch."""

import json
from pathlib import Path
from typing import Any

import tokenizers

from app.config import Settings
from app.engine.weights.fingerprint import weight_files
from app.engine.weights.resolve import GGUF_SUFFIX, check_gguf, drafter_folder, refusing, sha256_of
from app.errors import ModelRefused

TOKENIZER, CARD = "tokenizer.json", "drafter.json"


def drafters_problems(settings: Settings, target: Path) -> list[str]:
    """List the problems of the drafters that the settings name, by variable.

    `target`: the model's folder or GGUF file; if it does not exist, tokenizers are not compared.
    """
    found = [problem for name in settings.drafters if (problem := drafter_problem(name, target))]
    problems = [f"PACELINE_DRAFTERS: {'; '.join(found)}"] if found else []
    if settings.phrases != "none" and not (drafter_folder(settings.phrases) / CARD).is_file():
        problems.append(
            f"PACELINE_PHRASES: the store of phrases {settings.phrases!r} does not exist; use 'none' to have none"
        )
    return problems


def drafter_problem(name: str, target: Path) -> str | None:
    """Explain the problem of a drafter (a name in drafters/, a folder or a GGUF file); None if there is none."""
    place = drafter_folder(name)
    is_file = place.suffix == GGUF_SUFFIX
    if not is_file and not ((place / "config.json").is_file() and weight_files(place)):
        return f"drafter {name!r} is neither in drafters/ nor a GGUF file nor a folder with config.json and weights"
    try:
        with refusing(place):
            if is_file:
                check_gguf(place)
            else:
                _read(place / "config.json")
                _check_whole(place)
            return (why := mismatch(place, target)) and f"{name} {why}"
    except ModelRefused as error:
        return str(error)


def mismatch(drafter: Path, target: Path) -> str | None:
    """Say how a drafter's vocabulary differs from the target's; None where it does not, or cannot be compared yet.

    A drafter reads and guesses token ids alone, so another file with the same tokens will do.
    """
    is_file, card = drafter.suffix == GGUF_SUFFIX, _read(drafter / CARD)
    recorded, ours, theirs = card.get("tokenizer_sha256"), drafter / TOKENIZER, target / TOKENIZER
    if recorded is not None and theirs.is_file():
        return None if recorded == sha256_of(theirs) else "was made for another tokenizer"
    if target.suffix != GGUF_SUFFIX and not theirs.is_file():
        return None
    if not is_file and not ours.is_file():
        own, most = _read(drafter / "config.json").get("vocab_size", 0), _vocab_size(target)
        return None if own == most or recorded is None and own <= most else f"has {own} token ids, the target {most}"
    if not is_file and theirs.is_file() and sha256_of(ours) == sha256_of(theirs):
        return None
    other = _tokens(target)
    for id_, token in _tokens(drafter).items():
        if other.get(id_, token) != token:
            return f"has another vocabulary than the target: its token {id_} is {token!r}, the target's {other[id_]!r}"
    return None


def _check_whole(folder: Path) -> None:
    """Raise ModelRefused for a file of weights that is cut short or is none."""
    from safetensors import SafetensorError, safe_open  # with numpy, which commands that load no model need not

    from app.engine.weights.gguf_header import opened

    for file in weight_files(folder):
        if file.suffix == GGUF_SUFFIX:
            opened(file)
            continue
        try:
            safe_open(file, framework="numpy")
        except SafetensorError as error:
            raise ModelRefused(f"{file} is not a whole safetensors file: {error}") from error


def _tokens(model: Path) -> dict[int, str]:
    if model.suffix == GGUF_SUFFIX:
        from app.engine.weights.gguf_header import tokens  # with the library of GGUF, which most starts need not

        return dict(enumerate(tokens(model)))
    return {id_: token for token, id_ in tokenizers.Tokenizer.from_file(str(model / TOKENIZER)).get_vocab().items()}


def _vocab_size(model: Path) -> int:
    if model.suffix == GGUF_SUFFIX:
        return len(_tokens(model))
    return int(_read(model / "config.json").get("vocab_size", 0))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}
