"""Test the choice of a drafter's form: its rule, and that it is made once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from app.engine.cpu import choose_forward as compare
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.equivalence import trial
from app.engine.drafters import forms
from app.engine.drafters.forms import GAIN, LONGEST, PROMISE, chance_of, worth
from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import load_guesser
from app.engine.weights.blocks import dense
from app.engine.weights.rounding import linear_bytes, round_linear
from app.state import Guess
from tests import fakes
from tests.workers.tiny import make_model

CHANCES, COSTS = st.floats(0.0, 1.0), st.floats(0.0, 10.0)


@given(chance=CHANCES, more=CHANCES, cost=COSTS, dearer=COSTS)
def test_worth_rises_with_chance_and_falls_with_cost(chance: float, more: float, cost: float, dearer: float) -> None:
    found = worth(chance, cost)
    assert 0.0 < found <= LONGEST + 1
    assert worth(max(chance, more), cost) >= found >= worth(chance, cost + dearer)


@pytest.mark.parametrize(
    ("own", "other", "gains"),
    [
        ((0.781, 0.50), (0.761, 0.30), True),  # Qwen2.5-Coder 0.5B beside 1.5B
        ((0.40, 0.13), (0.373, 0.10), False),  # smol-general, whose answers are worse at four bits
        ((0.6, 0.3), (0.6, 0.3), False),
    ],
)
def test_fewer_bits_gain_where_a_guess_costs_much_of_a_step(
    own: tuple[float, float], other: tuple[float, float], gains: bool
) -> None:
    assert (worth(*other) >= GAIN * worth(*own)) is gains


def test_bundled_drafters_are_too_small_to_try() -> None:
    assert worth(0.43, 0.069) < PROMISE * worth(0.43, 0.13)


def test_the_chance_of_a_token_is_that_of_its_place_among_the_choices() -> None:
    own = Guess(5, 0.6, 7, 0.3, ((9, 0.1),))
    assert [chance_of(own, Guess(token, 1.0, 0, 0.0)) for token in (5, 7, 9, 8)] == [0.6, 0.3, 0.1, 0.0]


def test_bytes_of_a_form_are_those_of_its_blocks() -> None:
    weights = {
        "a": torch.randn(3, 64),
        "b": round_linear(torch.randn(2, 32), "q4_0"),
        "model.embed_tokens.weight": torch.randn(9, 64),
        "norm": torch.randn(64),
    }
    assert linear_bytes(weights, "stored") == 3 * 64 * 4 + 2 * 18
    assert linear_bytes(weights, "q8_0") == 3 * 2 * 34 + 2 * 34


Loads = Callable[[], tuple[ModelGuesser, list[str]]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a target and a drafter as large, whose weights four bits hold."""
    folder = tmp_path_factory.mktemp("home")
    drafter, _ = (make_model(folder / name, fused=True) for name in ("drafter", "target"))
    held = {
        name: dense(round_linear(weight, "q4_0")).contiguous() if weight.ndim == 2 and "embed" not in name else weight
        for name, weight in load_file(drafter / "model.safetensors").items()
    }
    save_file(held, drafter / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def loads(home: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Load the drafter at a first start; return it and the forms that were read."""
    read: list[str] = []

    def load(*args: Any, **rest: Any) -> ModelGuesser:
        read.append(rest["weights"])
        return load_guesser(*args, **rest)

    monkeypatch.setattr(forms, "load_guesser", load)
    monkeypatch.setattr(forms, "PROMPTS", forms.PROMPTS[:2])
    for kept in home.glob("known/*"):
        kept.unlink()

    def found() -> tuple[ModelGuesser, list[str]]:
        read.clear()
        guesser = forms.load_best_form(
            home / "drafter", home / "target", "q8_0", kv_bytes=2**24, page_tokens=16, home=home
        )
        return guesser, [*read]

    return found


@pytest.mark.parametrize(("times", "chosen"), [((1.0, 0.6), "q4_0"), ((1.0, 1.0), "q8_0")])
def test_a_form_is_chosen_by_its_cost_and_kept(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, times: tuple[float, float], chosen: str
) -> None:
    monkeypatch.setattr(forms, "_seconds", lambda guessers: times)
    guesser, read = loads()
    assert (guesser.weights, read) == (chosen, ["q8_0", "q4_0"])
    again, read = loads()
    assert (again.weights, read) == (chosen, [chosen])


def test_modules_run_for_one_form_alone(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = compare.choose_forward

    def choose(model: Any, wanted: Any, *rest: Any) -> Any:
        compared.append(wanted)
        return real(model, wanted, *rest)

    monkeypatch.setattr(compare, "choose_forward", choose)
    monkeypatch.setattr(forms, "_seconds", lambda guessers: (1.0, 0.6))
    first, again = loads()[0], loads()[0]
    assert compared == ["q8_0"] and first.weights == again.weights == "q4_0"
    assert torch.equal(trial(first.model), trial(again.model))


def test_a_form_is_chosen_by_how_often_it_is_right(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_seconds", lambda guessers: (1.0, 0.6))
    monkeypatch.setattr(forms, "chance_of", lambda own, other: 0.0)
    assert loads()[0].weights == "q8_0"


def test_guesses_of_a_chain_are_timed() -> None:
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, kv_bytes=2**20, page_tokens=16)
    assert all(0.0 < seconds < 1.0 for seconds in forms._seconds([guesser, guesser]))
