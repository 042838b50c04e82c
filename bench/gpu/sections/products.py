"""Time an 8B model's products in bfloat16 and in FP8 (`torch._scaled_mm`, scales by row): what FP8 weights would bring.

Nothing of FP8 is served. Where the device or torch cannot multiply so, the error is written instead.
"""

from functools import partial
from typing import Any

import torch

from bench.gpu.random_models import EIGHT_B, TINY
from bench.gpu.setting import Figures, Setting

ROWS = (1, 8, 16, 64, 256)
LEAST_ROWS = 16  # of an FP8 product: tensor cores take no fewer


def measure(setting: Setting, found: Figures) -> None:
    """Write a line for each product and number of rows into `found`."""
    shape = TINY if setting.is_quick else EIGHT_B
    width = shape.heads * shape.head_dim
    products = {
        "qkv": (width + 2 * shape.key_heads * shape.head_dim, shape.hidden),
        "out": (shape.hidden, width),
        "gate_up": (2 * shape.inner, shape.hidden),
        "down": (shape.hidden, shape.inner),
        "head": (shape.vocab, shape.hidden),
    }

    def times(product: str, rows: int, columns: int, depth: int) -> Figures:
        weight = torch.randn(columns, depth, device=setting.device).to(setting.dtype)
        return _times(setting, weight, rows)

    found["products"] = setting.lines(
        (
            {"product": name, "rows": rows, "columns": columns, "depth": depth}
            for name, (columns, depth) in products.items()
            for rows in (ROWS[:1] if setting.is_quick else ROWS)
        ),
        times,
    )


@torch.inference_mode()
def _times(setting: Setting, weight: torch.Tensor, rows: int) -> Figures:
    x = torch.randn(rows, weight.shape[1], device=setting.device).to(setting.dtype)
    line: Figures = {"ms": round(setting.device_ms(lambda: x @ weight.t(), is_cold=True), 4)}
    try:
        padded = torch.cat([x, x.new_zeros(max(0, LEAST_ROWS - rows), x.shape[1])])
        small, large = padded.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
        scales = (padded.new_ones((len(padded), 1), dtype=torch.float32), weight.new_ones((1, len(weight))).float())
        multiply: Any = torch._scaled_mm
        run = partial(multiply, small, large, scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
        line["fp8_ms"] = round(setting.device_ms(run, is_cold=True), 4)
    except Exception as error:
        line["fp8_error"] = f"{type(error).__name__}: {error}"[:200]
    return line
