"""Read a GGUF file's header, and refuse a file that is damaged or not supported. Loads no torch."""

import math
import mmap
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from app.engine.weights.served import experts_refused
from app.errors import ModelRefused

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files call themselves llama
# How a byte-level vocabulary splits text into words, by the names that llama.cpp's converter gives the rules:
DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")  # then as GPT-2 does
AS_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais")
BY_TRANSFORMERS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe", "tekken", "qwen2", "deepseek-r1-qwen")
MAGIC = b"GGUF"
TOKENS = "tokenizer.ggml.tokens"
ARRAY_HEAD = struct.Struct("<IQ")  # type and number of a list's elements
LENGTH = struct.Struct("<Q")  # of a string


def check_supported(file: Path) -> None:
    """Raise ModelRefused unless the file is a whole model of a kind that is served."""
    reader = opened(file)
    architecture = str(field(reader, file, "general.architecture"))
    if architecture not in ARCHITECTURES:
        raise ModelRefused(f"{file} has the architecture {architecture}; supported are {', '.join(ARCHITECTURES)}")
    if int(field(reader, file, f"{architecture}.expert_count", 0)) > 1:
        raise experts_refused(file)
    if int(field(reader, file, "split.count", 1)) > 1:
        raise ModelRefused(f"{file} is one of several parts; join them with llama.cpp's gguf-split --merge")
    splitting_rule(file)


def splitting_rule(file: Path) -> str | None:
    """Return the name of the rule that splits text into words; None for SentencePiece. Raises ModelRefused."""
    reader = opened(file)
    kind = str(field(reader, file, "tokenizer.ggml.model"))
    if kind == "llama":  # SentencePiece
        return None
    if kind != "gpt2":
        raise ModelRefused(f"{file} has a tokenizer of kind {kind}; supported are gpt2 (byte-level) and llama")
    rule = str(field(reader, file, "tokenizer.ggml.pre", "default"))
    if rule not in (*DIGIT_BY_DIGIT, *AS_GPT2, *BY_TRANSFORMERS):
        raise ModelRefused(f"{file} splits text by the rule {rule!r}, which is not supported")
    return rule


def title(file: Path) -> str:
    """Return the model's own name, in letters that a client's name of a model may have; else the file's stem."""
    named = str(field(opened(file), file, "general.name", file.stem))
    return re.sub(r"[^\w./:-]+", "-", named, flags=re.ASCII).strip("-")[:200] or "model"


def tokens(file: Path) -> list[str]:
    """Return the words of the vocabulary. Raises ModelRefused."""
    found = opened(file).get_field(TOKENS)
    if found is None:
        raise ModelRefused(f"{file} lacks {TOKENS}")
    return [word.decode(errors="replace") for word in _strings(found.parts[-1])]


def opened(file: Path) -> Any:
    """Open the file once a process. Raises ModelRefused for an invalid or truncated one."""
    try:
        about = file.stat()
        return _opened(file, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise ModelRefused(f"{file} cannot be read: {error.strerror}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
        why = error if isinstance(error, _NotWhole) else f"its header is damaged or cut short ({error})"
        raise ModelRefused(f"{file} is not a whole GGUF file: {why}") from error


def forget_pages(file: Path) -> None:
    opened(file).data._mmap.madvise(mmap.MADV_DONTNEED)


@lru_cache(maxsize=4)
def _opened(file: Path, size: int, changed_ns: int) -> Any:
    with file.open("rb") as start:
        if start.read(len(MAGIC)) != MAGIC:
            raise _NotWhole("it does not begin as one")
    return _Reader(file)


class _NotWhole(ValueError):
    """The file is no GGUF file, or ends too early."""


class _Reader(gguf.GGUFReader):
    """Leave lists unread: the library makes an array of every word, for seconds."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        data, head = self.data.data, orig_offs + ARRAY_HEAD.size
        kind, count = ARRAY_HEAD.unpack_from(data, orig_offs)
        number = self.gguf_scalar_to_np.get(kind)
        if number is not None:
            size = count * np.dtype(number).itemsize
        elif kind == gguf.GGUFValueType.STRING:
            size = _bytes_of_strings(data, head, count)
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        end = head + size
        if end > len(data):
            raise _NotWhole(f"a list of {count} elements goes beyond the end of the file")
        types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(kind)]
        return end - orig_offs, [self.data[orig_offs:end]], [], types

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        wanted = max((start_offs + _end(field) for field in fields), default=0)
        if wanted > len(self.data):
            raise _NotWhole(f"it is cut short: {len(self.data)} bytes of {wanted}")
        super()._build_tensors(start_offs, fields)


class WholeReader(_Reader):
    """Read lists, too: in a second, where the library takes ten."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        size, parts, found, types = super()._get_field_parts(orig_offs, raw_type)
        if raw_type != gguf.GGUFValueType.ARRAY or len(parts) > 1:  # the library has read it
            return size, parts, found, types
        number = self.gguf_scalar_to_np.get(types[1])
        elements = list(_strings(parts[0]) if number is None else parts[0][ARRAY_HEAD.size :].view(number)[:, None])
        return size, elements, list(range(len(elements))), types


def _strings(array: np.ndarray) -> Iterator[bytes]:
    """Yield the strings of a list's bytes (N,) uint8, its head among them."""
    data = bytes(array)
    offset = ARRAY_HEAD.size
    while offset < len(data):
        (length,) = LENGTH.unpack_from(data, offset)
        offset += LENGTH.size + length
        yield data[offset - length : offset]


def _end(field: Any) -> int:
    """Return the place behind a tensor's data, in bytes from the start of all data."""
    *_, shape, kind, offset = field.parts
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
    return int(offset[0]) + math.prod(map(int, shape)) // block * block_bytes


def _bytes_of_strings(data: memoryview, start: int, count: int) -> int:
    offset = start
    try:
        for _ in range(count):
            offset += LENGTH.size + LENGTH.unpack_from(data, offset)[0]
    except struct.error as error:
        raise _NotWhole(f"a list of {count} strings goes beyond the end of the file") from error
    return offset - start


def field(reader: Any, file: Path, name: str, default: object = None) -> Any:
    """Raises ModelRefused without value and default."""
    found = reader.get_field(name)
    if found is None:
        if default is None:
            raise ModelRefused(f"{file} lacks {name}")
        return default
    return found.contents()
