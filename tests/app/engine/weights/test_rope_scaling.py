"""Test that a GGUF file's positions are those of transformers' equivalent configuration, on every
forward, and that a setting without a counterpart is refused by name.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import load
from app.engine.gpu.weights import take
from app.engine.weights.families import SLACK
from app.engine.weights.gguf import describe
from app.engine.weights.hf_reader import read
from app.engine.weights.resolve import GGUF
from app.errors import ModelRefused
from tests import fakes
from tests.app.engine.weights.ggufs import write
from tests.app.engine.weights.test_gguf_file import last_row

BASE, POSITIONS = 10_000.0, 512
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
# Of transformers, and the header that llama.cpp's converter writes of it:
SCALED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"rope_type": "linear", "factor": 3.0}, {"type": "linear", "factor": 3.0}),
    "yarn": (YARN, {"type": "yarn", "factor": 4.0, "original_context_length": 128}),
    "yarn_of_its_own": (
        {**YARN, "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0},
        {
            "type": "yarn",
            "factor": 4.0,
            "original_context_length": 128,
            "yarn_attn_factor": 1.25,
            "yarn_beta_fast": 16.0,
            "yarn_beta_slow": 2.0,
        },
    ),
    "llama3": (LLAMA3, {}),
}


def scaled(kind: str) -> PreTrainedModel:
    """Make a tiny model whose positions are scaled as SCALED says."""
    return fakes.tiny(rope_parameters={"rope_theta": BASE, **SCALED[kind][0]})


def written(model: PreTrainedModel, file: Path, rope: dict[str, Any], **tables: np.ndarray) -> Path:
    """Write a model in float32; return its folder, described. `rope`: settings of scaling.* in the header."""
    fields = {f"llama__rope__scaling__{name}": value for name, value in rope.items()}
    write(model, file, ("F32",), tables={f"{name}.weight": table for name, table in tables.items()}, **fields)
    describe(file, file.parent)
    return file.parent


def converted(kind: str, file: Path) -> tuple[PreTrainedModel, Path]:
    """Return a model and the folder of its file, written as llama.cpp's converter does."""
    model = scaled(kind)
    tables = {"rope_freqs": llama3_table(model)} if kind == "llama3" else {}
    return model, written(model, file, SCALED[kind][1], **tables)


def llama3_table(model: PreTrainedModel) -> np.ndarray:
    """Compute the factors of Llama 3 by the converter's formula, (D / 2,) float32."""
    low, high = (LLAMA3["original_max_position_embeddings"] / LLAMA3[f"{end}_freq_factor"] for end in ("low", "high"))
    found = []
    for pair in range(model.config.head_dim // 2):
        wave = 2 * math.pi * BASE ** (2 * pair / model.config.head_dim)
        smooth = (128 / wave - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"])
        between = 1 / ((1 - smooth) / LLAMA3["factor"] + smooth)
        found.append(1.0 if wave < high else LLAMA3["factor"] if wave > low else between)
    assert len({factor for factor in found if 1 < factor < LLAMA3["factor"]}) > 1, "some are in between"
    return np.array(found, np.float32)


def turns(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a model's cosines and sines at all its positions, (positions, D) each."""
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(POSITIONS + SLACK)[None])
    return cos[0], sin[0]


@pytest.mark.parametrize("kind", SCALED)
def test_positions_turn_as_in_the_model_that_was_converted(kind: str, tmp_path: Path) -> None:
    model, folder = converted(kind, tmp_path / GGUF)
    ours = read(folder)
    assert ours.model.rotary_emb.attention_scaling == model.model.rotary_emb.attention_scaling
    found, expected = ours.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq
    if kind == "llama3":  # a product there, a quotient of the file's factors here: two roundings apart
        torch.testing.assert_close(found, expected, rtol=2.5e-7, atol=0)
    else:
        assert torch.equal(found, expected)
        assert all(torch.equal(one, other) for one, other in zip(turns(ours), turns(model), strict=True))
    on_gpu = take(read(folder))
    assert torch.equal(on_gpu.cos, turns(ours)[0]) and torch.equal(on_gpu.sin, turns(ours)[1])


@pytest.mark.parametrize("kind", SCALED)
def test_logits_and_greedy_text_are_those_of_the_model_that_was_converted(kind: str, tmp_path: Path) -> None:
    model, folder = converted(kind, tmp_path / GGUF)
    forward, again = (load(folder, "stored", tmp_path / "home") for _ in range(2))
    assert isinstance(forward, FusedForward) and isinstance(again, FusedForward)
    ids = [(7 * i + 3) % 40 for i in range(300)]  # beyond the original context
    with torch.inference_mode():
        for _ in range(12):
            expected = model(torch.tensor([ids])).logits[0, -1]
            found = last_row(again, ids)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert torch.equal(found, last_row(forward, ids))
            assert (id_ := int(found.argmax())) == int(expected.argmax())
            ids.append(id_)
        plain = fakes.tiny()(torch.tensor([ids])).logits[0, -1]
    assert (plain - model(torch.tensor([ids])).logits[0, -1]).abs().max() > 0.1, "scaling decides"


@pytest.mark.parametrize(
    ("rope", "table", "divided"),
    [
        ({"type": "none", "factor": 3.0}, 1.0, 1.0),
        ({"factor": 3.0}, 1.0, 3.0),
        ({"type": "linear", "factor": 3.0}, 2.5, 7.5),
        ({"type": "none"}, 2.5, 2.5),
        ({"finetuned": 1}, 2.5, 2.5),
    ],
)
def test_a_table_and_a_factor_divide_the_frequencies(
    rope: dict[str, Any], table: float, divided: float, tmp_path: Path
) -> None:
    model: Any = fakes.tiny()
    pairs = model.config.head_dim // 2
    tables = {} if table == 1.0 else {"rope_freqs": np.full(pairs, table, np.float32)}
    ours: Any = read(written(model, tmp_path / GGUF, rope, **tables))
    expected = model.model.rotary_emb.inv_freq / divided
    torch.testing.assert_close(ours.model.rotary_emb.inv_freq, expected, rtol=2.5e-7, atol=0)


def test_old_files_name_the_factor_otherwise(tmp_path: Path) -> None:
    model: Any = scaled("linear")
    write(model, tmp_path / GGUF, ("F32",), llama__rope__scale_linear=3.0)
    describe(tmp_path / GGUF, tmp_path)
    ours: Any = read(tmp_path)
    assert torch.equal(ours.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


def test_attn_factor_multiplies_yarns_own(tmp_path: Path) -> None:
    ours: Any = read(written(scaled("yarn"), tmp_path / GGUF, {**SCALED["yarn"][1], "attn_factor": 1.5}))
    assert ours.model.rotary_emb.attention_scaling == pytest.approx(1.5 * (1 + 0.1 * math.log(4)))


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"type": "longrope"}, "as longrope"),
        ({"type": "su"}, "as su"),
        ({"type": "linear"}, "lacks llama.rope.scaling.factor"),
        ({"type": "linear", "factor": -2.0}, "llama.rope.scaling.factor = -2.0, which must be a positive number"),
        ({"type": "linear", "factor": math.nan}, "llama.rope.scaling.factor = nan"),
        ({"type": "linear", "factor": 2.0, "attn_factor": 1.5}, "sets llama.rope.scaling.attn_factor to 1.5"),
        ({"yarn_ext_factor": 1.0}, "sets llama.rope.scaling.yarn_ext_factor to 1.0"),
        ({**SCALED["yarn"][1], "yarn_ext_factor": 0.5}, "sets llama.rope.scaling.yarn_ext_factor to 0.5"),
        ({**SCALED["yarn"][1], "yarn_log_multiplier": 0.1}, "by llama.rope.scaling.yarn_log_multiplier"),
        ({**SCALED["yarn_of_its_own"][1], "attn_factor": 1.5}, "sets llama.rope.scaling.attn_factor to 1.5"),
        ({"alpha": 1000.0}, "by llama.rope.scaling.alpha"),
    ],
)
def test_a_setting_without_a_counterpart_is_refused_by_name(rope: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=message):
        written(fakes.tiny(), tmp_path / GGUF, rope)


@pytest.mark.parametrize(
    ("tables", "rope", "message"),
    [
        ({"rope_freqs": [1.0] * 3}, {}, "rope_freqs.weight does not hold a positive number for each"),
        ({"rope_freqs": [1.0] * 15 + [0.0]}, {}, "rope_freqs.weight does not hold a positive number for each"),
        ({"rope_freqs": [1.0] * 15 + [math.nan]}, {}, "rope_freqs.weight does not hold a positive number for each"),
        ({"rope_freqs": [1.0] * 16}, SCALED["yarn"][1], "by yarn and by rope_freqs.weight at once"),
        ({"rope_factors_short": [1.0] * 16}, {}, "tables of positions for short and long texts"),
    ],
)
def test_a_table_without_a_counterpart_is_refused(
    tables: dict[str, list[float]], rope: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = fakes.tiny()
    assert model.config.head_dim == 32
    with pytest.raises(ModelRefused, match=message):
        written(model, tmp_path / GGUF, rope, **{name: np.array(one, np.float32) for name, one in tables.items()})


def test_a_head_turned_in_part_is_refused(tmp_path: Path) -> None:
    write(fakes.tiny(), tmp_path / GGUF, ("F32",), llama__rope__dimension_count=16)
    with pytest.raises(ModelRefused, match="to 16 of a head's 32 dimensions"):
        describe(tmp_path / GGUF, tmp_path)
