"""Test that a widened model says what its source says."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.engine.weights.hf_reader import read
from bench.gpu import wide_model
from tests.app.engine.weights.ggufs import write


@torch.inference_mode()
def test_a_wide_model_has_its_sources_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    source = tmp_path / "source"
    config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=96, num_hidden_layers=2, head_dim=64,
                         num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2)  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for norm in (one for name, one in model.named_parameters() if "norm" in name):
        norm.uniform_(0.5, 2.0)
    config.save_pretrained(source)
    write(model, source / "model.gguf", ("BF16",))
    sizes = {"hidden": 256, "inner": 160, "layers": 3, "heads": 4, "key-heads": 2}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    monkeypatch.setattr("sys.argv", ["wide_model", str(source), str(tmp_path), *words])
    assert wide_model.main() == 0
    ids = torch.arange(40)[None] % 64
    expected, wide, noisy = (read(tmp_path / name)(ids).logits for name in ("source", "target", "drafter"))
    assert torch.allclose(wide, expected, atol=1e-4) and expected.std() > 0.1
    assert not torch.allclose(noisy, expected, atol=1e-2)
