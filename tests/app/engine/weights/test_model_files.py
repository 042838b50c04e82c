"""Damaged files, as a target or drafter, are loaded or refused in a sentence, without a hang."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.assembly.devices import target_runner
from app.assembly.drafter import build_drafters
from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import refusing, resolve
from app.errors import PacelineError
from tests.workers.tiny import make_model

EXAMPLES = int(os.environ.get("PACELINE_FUZZ", "5"))  # each loads a model
LIMIT_S = 60  # a tiny model loads in about one
ODD = st.sampled_from(
    [None, True, -1, 0, 1, 3, 10**9, 10**30, 1e308, "", "x", "../x", [], [1], {}, {"a": 1}, float("nan")]
)
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("sound") / "model")


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, Damage]:
    """Draw a damage to one file of a model's folder, and its description."""
    kind = draw(st.sampled_from(["value", "value", "missing", "header", "cut", "byte"]))
    if kind in ("value", "missing"):
        name = draw(
            st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
        )
        path, odd = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4)), draw(ODD)
        return f"{kind} {name} {path} {odd}", lambda folder: _value(folder / name, path, odd, is_gone=kind == "missing")
    if kind == "header":
        field, odd = draw(st.sampled_from(["dtype", "shape", "data_offsets"])), draw(ODD)
        which = draw(st.integers(0, 20))
        return f"{kind} {which} {field} {odd}", lambda folder: _header(folder / "model.safetensors", which, field, odd)
    name = draw(st.sampled_from(["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"]))
    place, byte = draw(st.integers(0, 5000)), draw(st.integers(0, 255))
    return f"{kind} {name} {place} {byte}", lambda folder: _bytes(folder / name, place, byte, is_cut=kind == "cut")


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(damage=damages(), is_drafter=st.booleans())
def test_a_damaged_model_is_loaded_or_refused(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, damage: tuple[str, Damage], is_drafter: bool
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(sound, folder)
    what, apply = damage
    apply(folder)
    target, drafter = (sound, folder) if is_drafter else (folder, sound)
    chosen = Settings(model=str(target), drafters=(str(drafter),), kv_bytes=2**24, home=folder / "home")
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        resolve(chosen.model, chosen.home, print)
        with refusing(target):
            target_runner(target, chosen, Tokenizer(target).context_tokens)
        build_drafters(chosen)
    except PacelineError as error:
        assert str(error) and "\n  File" not in str(error), what
    finally:
        signal.alarm(0)


def _too_long(number: int, frame: Any) -> None:
    raise TimeoutError(f"not done after {LIMIT_S} s")


def _value(file: Path, path: list[int], odd: Any, *, is_gone: bool) -> None:
    """Put another value, or none, somewhere into a JSON file."""
    whole = json.loads(file.read_text()) if file.exists() else {}
    place = whole
    for i, step in enumerate(path):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if i + 1 < len(path) and isinstance(place[key], dict | list) and place[key]:
            place = place[key]
        elif is_gone:
            del place[key]
            break
        else:
            place[key] = odd
            break
    file.write_text(json.dumps(whole))


def _header(file: Path, which: int, field: str, odd: Any) -> None:
    """Write another value of a field of one of the weights into the file's header."""
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    names = sorted(name for name in header if name != "__metadata__")
    header[names[which % len(names)]][field] = odd
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])


def _bytes(file: Path, place: int, byte: int, *, is_cut: bool) -> None:
    whole = file.read_bytes()
    place %= len(whole)
    file.write_bytes(whole[:place] if is_cut else whole[:place] + bytes([byte]) + whole[place + 1 :])
