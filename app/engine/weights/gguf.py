"""Write a GGUF model's configuration and tokenizer as Hugging Face's files.

`python -m app.engine.weights.gguf MODEL.gguf FOLDER`, a separate process: transformers takes seconds to import.
"""

import sys
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from app.engine.weights.gguf_file import field, opened
from app.engine.weights.rope_scaling import rope_parameters
from app.engine.weights.served import experts_refused
from app.errors import ModelRefused

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files call themselves llama
FREQ_BASE = 10_000.0  # of a file that names none
# How a byte-level vocabulary splits text into words, by the names that llama.cpp's converter gives the rules:
DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")  # then as GPT-2 does
AS_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
BY_TRANSFORMERS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "tekken", "qwen2", "deepseek-r1-qwen")


def describe(file: Path, folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer's files. Raises ModelRefused."""
    reader = opened(file)
    architecture = str(field(reader, file, "general.architecture"))
    if architecture not in ARCHITECTURES:
        raise ModelRefused(f"{file} has the architecture {architecture}; supported are {', '.join(ARCHITECTURES)}")
    if int(field(reader, file, f"{architecture}.expert_count", 0)) > 1:
        raise experts_refused(file)
    if int(field(reader, file, "split.count", 1)) > 1:
        raise ModelRefused(f"{file} is one of several parts; join them with llama.cpp's gguf-split --merge")
    config: Any = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    # transformers' reader drops the heads' size and how positions are scaled.
    if head_dim := int(field(reader, file, f"{architecture}.attention.key_length", 0)):
        config.head_dim = head_dim
    else:
        head_dim = config.hidden_size // config.num_attention_heads
    base = float(field(reader, file, f"{architecture}.rope.freq_base", FREQ_BASE))
    config.rope_parameters = rope_parameters(reader, file, head_dim, base, config.max_position_embeddings)
    config.standardize_rope_params()
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    rule = _splitting_rule(reader, file)
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if rule in DIGIT_BY_DIGIT:  # transformers has no entry for it, and splits as GPT-2 does
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)


def _splitting_rule(reader: Any, file: Path) -> str | None:
    kind = str(field(reader, file, "tokenizer.ggml.model"))
    if kind == "llama":  # SentencePiece
        return None
    if kind != "gpt2":
        raise ModelRefused(f"{file} has a tokenizer of kind {kind}; supported are gpt2 (byte-level) and llama")
    rule = str(field(reader, file, "tokenizer.ggml.pre", "default"))
    if rule not in (*DIGIT_BY_DIGIT, *AS_GPT2, *BY_TRANSFORMERS):
        raise ModelRefused(f"{file} splits text by the rule {rule!r}, which is not supported")
    return rule


def main() -> int:
    try:
        describe(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelRefused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
