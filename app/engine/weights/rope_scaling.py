"""Read the scaling of positions from a GGUF file, as transformers' `rope_parameters`.

llama.cpp rotates pair i of a head by `position * base^(-2 i / D) / f_i`, f from the tensor `rope_freqs` if present, and
scales that linearly or by yarn. A setting without an exact counterpart in transformers is refused.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.weights.gguf_header import field
from app.errors import ModelRefused

TABLE = "rope_freqs.weight"  # (D / 2,), by which the frequencies are divided
KNOWN = (
    "dimension_count",
    "freq_base",
    "scale_linear",  # the factor's name in old files
    "scaling.type",
    "scaling.factor",
    "scaling.attn_factor",
    "scaling.original_context_length",
    "scaling.finetuned",
    "scaling.yarn_ext_factor",
    "scaling.yarn_attn_factor",
    "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow",
)


def rope_parameters(reader: Any, file: Path, head_dim: int, base: float, max_positions: int) -> dict[str, Any]:
    """Raises ModelRefused."""
    architecture = str(field(reader, file, "general.architecture"))
    header = _Header(reader, file, f"{architecture}.rope.")
    header.check_known()
    if (turned := header.number("dimension_count", head_dim)) != head_dim:
        raise ModelRefused(
            f"{file} applies rotary embeddings to {turned:g} of a head's {head_dim} dimensions, which is not supported"
        )
    table = _table(reader, file, head_dim // 2)
    is_factor_given = header.has("scaling.factor") or header.has("scale_linear")
    # llama.cpp takes a factor without a type for a linear one
    kind = str(field(reader, file, header.prefix + "scaling.type", "linear" if is_factor_given else "none"))
    if kind == "yarn":
        if table is not None:
            raise ModelRefused(f"{file} scales its positions by yarn and by {TABLE} at once, which is not supported")
        return {"rope_theta": base, **_yarn(header, max_positions)}
    if kind not in ("none", "linear"):
        raise ModelRefused(f"{file} scales its positions as {kind} ({header.prefix}scaling.type): not supported")
    header.need("scaling.attn_factor", 1.0)
    header.need("scaling.yarn_ext_factor", 0.0)  # llama.cpp scales by yarn wherever it is positive
    factor = header.factor() if kind == "linear" else 1.0
    if table is not None:
        return {"rope_theta": base, **_by_table(table * factor, max_positions)}
    return {"rope_theta": base} | ({"rope_type": "linear", "factor": factor} if kind == "linear" else {})


def is_one_table(rope: dict[str, Any] | None) -> bool:
    return rope is not None and rope.get("rope_type") == "longrope" and rope["short_factor"] == rope["long_factor"]


def _by_table(factors: np.ndarray, max_positions: int) -> dict[str, Any]:
    """Return the parameters that divide frequency i by factors[i], (D / 2,): longrope, one table for all texts."""
    both = factors.tolist()
    return {
        "rope_type": "longrope",
        "short_factor": both,
        "long_factor": both,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": max_positions,
    }


def _yarn(header: "_Header", max_positions: int) -> dict[str, Any]:
    """Return yarn's parameters; attn_factor multiplies yarn's own, 1 + 0.1 ln(factor), yarn_attn_factor is both."""
    header.need("scaling.yarn_ext_factor", 1.0)
    factor, original = header.factor(), header.number("scaling.original_context_length", max_positions)
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(original)}
    for name in ("beta_fast", "beta_slow"):
        if header.has(f"scaling.yarn_{name}"):
            found[name] = header.number(f"scaling.yarn_{name}", 0.0)
    if header.has("scaling.yarn_attn_factor"):
        header.need("scaling.attn_factor", 1.0)
        found["attention_factor"] = header.number("scaling.yarn_attn_factor", 0.0)
    elif (more := header.number("scaling.attn_factor", 1.0)) != 1.0:
        found["attention_factor"] = more * (0.1 * math.log(max(factor, 1.0)) + 1.0)
    return found


def _table(reader: Any, file: Path, pairs: int) -> np.ndarray | None:
    """Return the factors of `rope_freqs`, (D / 2,) float64, or None. Raises ModelRefused."""
    found = None
    for tensor in reader.tensors:
        if tensor.name.startswith("rope_factors_"):
            raise ModelRefused(
                f"{file} has tables of positions for short and long texts, {tensor.name}, which is not supported"
            )
        if tensor.name == TABLE:
            found = np.asarray(tensor.data)
    if found is None:
        return None
    if found.dtype != np.float32 or found.shape != (pairs,) or not (np.isfinite(found) & (found > 0)).all():
        raise ModelRefused(f"{file}: {TABLE} does not hold a positive number for each of a head's {pairs} frequencies")
    return found.astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Header:
    reader: Any
    file: Path
    prefix: str

    def check_known(self) -> None:
        for name in self.reader.fields:
            if name.startswith(self.prefix) and name.removeprefix(self.prefix) not in KNOWN:
                raise ModelRefused(f"{self.file} scales its positions by {name}, which is not supported")

    def has(self, name: str) -> bool:
        return self.reader.get_field(self.prefix + name) is not None

    def number(self, name: str, default: float) -> float:
        found = field(self.reader, self.file, self.prefix + name, default)
        if not isinstance(found, int | float) or not 0 < found < math.inf:
            raise ModelRefused(f"{self.file} has {self.prefix}{name} = {found}, which must be a positive number")
        return found

    def need(self, name: str, only: float) -> None:
        """Raise ModelRefused if the file sets this to another number than `only`."""
        found = field(self.reader, self.file, self.prefix + name, only)
        if found != only:
            raise ModelRefused(f"{self.file} sets {self.prefix}{name} to {found}, which is not supported")

    def factor(self) -> float:
        name = "scaling.factor" if self.has("scaling.factor") or not self.has("scale_linear") else "scale_linear"
        if not self.has(name):
            raise ModelRefused(f"{self.file} lacks {self.prefix}{name}")
        return self.number(name, 0.0)
