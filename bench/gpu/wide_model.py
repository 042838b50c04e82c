"""`python bench/gpu/wide_model.py SOURCE FOLDER`: write a model of an 8B's size that says what a small one says.

A step's time hangs on a model's shape, acceptance on its text. Random weights have the shape and no text. This widens a
Llama-shaped GGUF model: the source's matrices lie in the first rows and columns of wide ones, further layers add
nothing, and RMSNorm's weights are scaled by sqrt(d / D), the quotient of the norms of a row of d numbers and of the
same row with zeros up to D. What multiplies a zero is random, what must add nothing is zero. The folder `target` has it
in bfloat16, `drafter` the source with noise on its matrices, of `--noise` times their deviation, in float16.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.gguf_reader import GGUFReader  # the library's own: `gguf.GGUFReader` may be that for transformers

Matrix = np.ndarray
MODEL = "model.gguf"
HEAD_DIM = 64  # of the source and of the wide model: rotation hangs on it
NORMS = ("attn_norm", "ffn_norm", "output_norm")
SIZES = {"hidden": 4608, "inner": 14336, "layers": 32, "heads": 48, "key_heads": 16}  # 7.8e9 parameters
CHANGED = {"embedding_length": "hidden", "feed_forward_length": "inner", "block_count": "layers",
           "attention.head_count": "heads", "attention.head_count_kv": "key_heads"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file; `uint16` are the bits of bfloat16. `make` may use one buffer for many."""

    shape: tuple[int, ...]
    dtype: type[np.generic]
    make: Callable[[], Matrix]

    @property
    def num_bytes(self) -> int:
        """Return the bytes that it takes in the file."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def main() -> int:
    """Write both models; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of a Llama-shaped model.gguf")
    parser.add_argument("folder", type=Path, help="where the folders target and drafter are made")
    parser.add_argument("--noise", type=float, default=0.1, help="of the drafter, in deviations of each matrix")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    args = parser.parse_args()
    sizes = {name: getattr(args, name) for name in SIZES}
    reader = GGUFReader(args.source / MODEL)
    small = {one.name: gguf.dequantize(one.data, one.tensor_type).astype(np.float32) for one in reader.tensors}
    drafter, target = args.folder / "drafter", args.folder / "target"
    describe(args.source, drafter, {})
    write(drafter / MODEL, reader, noisy(small, args.noise), {}, gguf.LlamaFileType.MOSTLY_F16)
    describe(args.source, target, sizes)
    write(target / MODEL, reader, wide(small, sizes), sizes, gguf.LlamaFileType.MOSTLY_BF16)
    return 0


def describe(source: Path, folder: Path, sizes: dict[str, int]) -> None:
    """Copy configuration and tokenizer, with what the sizes change."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.j*"):
        if file.name != "paceline.json":
            shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text())
    if sizes:
        config["rms_norm_eps"] *= config["hidden_size"] / sizes["hidden"]
    names = {"hidden": "hidden_size", "inner": "intermediate_size", "layers": "num_hidden_layers",
             "heads": "num_attention_heads", "key_heads": "num_key_value_heads"}  # fmt: skip
    config |= {names[name]: size for name, size in sizes.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def wide(small: dict[str, Matrix], sizes: dict[str, int]) -> dict[str, Tensor]:
    """Return the wide model's tensors: matrices as the bits of bfloat16, in a buffer that the next one overwrites."""
    hidden, narrow = sizes["hidden"], small["output_norm.weight"].size
    queries, keys = (sizes[name] * HEAD_DIM for name in ("heads", "key_heads"))
    rows = {"attn_q": queries, "attn_k": keys, "attn_v": keys, "ffn_gate": sizes["inner"], "ffn_up": sizes["inner"]}
    columns = {"attn_output": queries, "ffn_down": sizes["inner"]}
    vocab = len(small["token_embd.weight"])
    noise = _bits(0.02 * torch.randn(max(rows.values()), hidden, generator=torch.Generator().manual_seed(0)))
    zeros = np.zeros(hidden * max(vocab, *columns.values()), np.uint16)

    def tensor(kind: str, weight: Matrix | None) -> Tensor:
        if kind in NORMS:
            return Tensor((hidden,), np.float32, partial(norm, weight))
        shape = rows.get(kind, vocab if kind in ("token_embd", "output") else hidden), columns.get(kind, hidden)
        return Tensor(shape, np.uint16, partial(matrix, shape, weight, reads_zeros=kind in rows))

    def norm(weight: Matrix | None) -> Matrix:
        found = np.zeros(hidden, np.float32)
        if weight is not None:
            found[:narrow] = weight * np.sqrt(narrow / hidden)
        return found

    def matrix(shape: tuple[int, int], weight: Matrix | None, *, reads_zeros: bool) -> Matrix:
        if not reads_zeros:
            zeros.fill(0)
        found = noise[: shape[0]] if reads_zeros else zeros[: shape[0] * shape[1]].reshape(shape)
        if weight is not None:
            found[: len(weight), : weight.shape[1]] = _bits(torch.from_numpy(weight))
        return found

    found = {name: tensor(name.split(".")[-2], weight) for name, weight in small.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in small if name.startswith("blk."))
    for place in range(layers, sizes["layers"]):
        for name in (name for name in small if name.startswith("blk.0.")):
            found[name.replace("blk.0.", f"blk.{place}.")] = tensor(name.split(".")[-2], None)
    return found


def noisy(small: dict[str, Matrix], noise: float) -> dict[str, Tensor]:
    """Return the source's tensors, matrices in float16 and with noise but for the embedding."""
    random = np.random.default_rng(0)

    def matrix(weight: Matrix, of: float) -> Matrix:
        return (weight + of * weight.std() * random.standard_normal(weight.shape, np.float32)).astype(np.float16)

    return {
        name: Tensor(weight.shape, np.float32, partial(np.asarray, weight)) if weight.ndim == 1
        else Tensor(weight.shape, np.float16, partial(matrix, weight, 0.0 if name.startswith("token") else noise))
        for name, weight in small.items()
    }  # fmt: skip


def write(
    file: Path,
    reader: GGUFReader,
    tensors: dict[str, Tensor],
    sizes: dict[str, int],
    kind: gguf.LlamaFileType,
) -> None:
    """Write the tensors under the source's metadata, with what the sizes change."""
    writer = gguf.GGUFWriter(file, "llama")
    narrow = int(np.asarray(reader.fields["llama.embedding_length"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        value, types = field.contents(), field.types
        changed = CHANGED.get(name.removeprefix("llama."))
        if sizes and changed:
            value = sizes[changed]
        if sizes and name == "llama.attention.layer_norm_rms_epsilon":
            value = value * narrow / sizes["hidden"]
        writer.add_key_value(name, value, types[0], sub_type=types[-1] if len(types) > 1 else None)
    if sizes:
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
    writer.add_file_type(kind)
    for name, tensor in tensors.items():
        raw = gguf.GGMLQuantizationType.BF16 if tensor.dtype == np.uint16 else None
        writer.add_tensor_info(name, tensor.shape, np.dtype(tensor.dtype), tensor.num_bytes, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors.values():
        writer.write_tensor_data(np.ascontiguousarray(tensor.make()))
    writer.close()
    print(f"{file}: {file.stat().st_size / 1e9:.2f} GB", flush=True)


def _bits(numbers: torch.Tensor) -> Matrix:
    return numbers.to(torch.bfloat16).view(torch.uint16).numpy()


if __name__ == "__main__":
    sys.exit(main())
