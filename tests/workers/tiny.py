"""Make a target and a drafter: random weights, a byte-level tokenizer, steps of a few milliseconds."""

import hashlib
import json
import os
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

EOS = "<eos>"
CONTEXT_TOKENS = 8192
WIDE = 4096  # of the gate: 3 MB a layer
SHARPNESS = 12.0  # of the head: random weights must not leave near ties, nor a chance for the end token


def make_model(folder: Path, idle_layers: int = 0, *, fused: bool = False) -> Path:
    """Write a small random Llama of two layers; its texts end by their length only, and are always the same.

    Idle layers add time and nothing else: without them a step is too short for any draft to be worth asking for.
    `fused`: of a shape that the compiled forward takes, whose layers are wide to take as long as the modules'.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=WIDE if fused else 128,
        num_hidden_layers=2 + idle_layers,
        num_attention_heads=2 if fused else 4,
        num_key_value_heads=1 if fused else 2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    generator = torch.Generator().manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(f"layers.{2 + i}." in name for i in range(idle_layers)):
                weight.fill_(0.0)
            elif weight.dim() == 2:
                std = {"model.embed_tokens.weight": 1.0, "lm_head.weight": SHARPNESS / 8}.get(name, 0.25)
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        model.lm_head.weight[0] = 0.0  # logit 0 for the end token, dozens below the best
    model.save_pretrained(folder)
    _date_by_content(folder / "model.safetensors")
    return folder


def _date_by_content(weights: Path) -> None:
    """Give equal weights an equal time: they count by size and time, so what is kept of one holds for the next."""
    seconds = int(hashlib.sha256(weights.read_bytes()).hexdigest()[:7], 16)
    os.utime(weights, (seconds, seconds))


def _write_tokenizer(folder: Path) -> int:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: id_ for id_, token in enumerate([EOS, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
    )
    return len(vocab)
