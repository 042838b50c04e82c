"""Write the configuration and the tokenizer of a GGUF model as Hugging Face's files.

`python -m app.engine.weights.gguf MODEL.gguf FOLDER`. A process of its own, started by
`app.engine.weights.resolve`: transformers takes seconds to import. The weights stay in the file.
"""

import sys
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from app.engine.weights.gguf_file import field, opened
from app.errors import ModelRefused

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files call themselves llama


def describe(file: Path, folder: Path) -> None:
    """Write config.json, generation_config.json and the tokenizer's files. Raises ModelRefused."""
    reader = opened(file)
    architecture = str(field(reader, file, "general.architecture"))
    if architecture not in ARCHITECTURES:
        raise ModelRefused(f"{file} is of architecture {architecture}; {', '.join(ARCHITECTURES)} are read")
    if int(field(reader, file, "split.count", 1)) > 1:
        raise ModelRefused(f"{file} is one of several parts; join them with llama.cpp's gguf-split --merge")
    if any(tensor.name.startswith("rope_freqs") for tensor in reader.tensors):
        raise ModelRefused(f"{file} scales its positions by a table, rope_freqs, which is not read yet")
    scaling = str(field(reader, file, f"{architecture}.rope.scaling.type", "none"))
    config: Any = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    # transformers' reader drops both.
    if head_dim := int(field(reader, file, f"{architecture}.attention.key_length", 0)):
        config.head_dim = head_dim
    if scaling == "linear":
        factor = float(field(reader, file, f"{architecture}.rope.scaling.factor"))
        config.rope_parameters = {**(config.rope_parameters or {}), "rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise ModelRefused(f"{file} scales its positions as {scaling}; only linear scaling is read")
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def main() -> int:
    """Describe the file that the command line names; return the exit status."""
    try:
        describe(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelRefused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
