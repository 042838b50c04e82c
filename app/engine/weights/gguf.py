"""Write a GGUF model's configuration and tokenizer as Hugging Face's files.

`python -m app.engine.weights.gguf MODEL.gguf FOLDER`, a separate process: transformers takes seconds to import.
"""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from app.engine.weights.gguf_header import DIGIT_BY_DIGIT, WholeReader, check_supported, field, opened, splitting_rule
from app.engine.weights.rope_scaling import rope_parameters
from app.errors import ModelRefused

FREQ_BASE = 10_000.0  # of a file that names none


def describe(file: Path, folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer's files. Raises ModelRefused."""
    check_supported(file)
    reader = opened(file)
    vars(gguf)["GGUFReader"] = lru_cache(WholeReader)  # transformers would read the file twice, ten seconds each
    architecture = str(field(reader, file, "general.architecture"))
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
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if splitting_rule(file) in DIGIT_BY_DIGIT:  # transformers has no entry for it, and splits as GPT-2 does
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m app.engine.weights.gguf MODEL.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        describe(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelRefused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
