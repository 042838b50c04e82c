"""Dequantise a GGUF model into float32 safetensors, its tokenizer's files beside them.

`python -m app.engine.weights.gguf MODEL.gguf FOLDER`. A process of its own, started by
`app.engine.weights.resolve`: it needs torch, and twice the model's memory for a moment.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and its tokenizer as transformers loads them."""
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # Both say "quantised" although the weights no longer are; save_pretrained would refuse.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
