"""Write a drafter's weights as a GGUF file: matrices as Q8_0, by gguf's own quantiser.

The drafter reads it with `app.engine.drafters.loader`, whose default weights are these very blocks.
"""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch

from app.engine.weights.blocks import Blocks
from app.engine.weights.gguf_file import DRAFTER
from app.engine.weights.rounding import round_linear


def write_weights(file: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by their modules' names: (N, K) float as Q8_0 where K is whole blocks, else in its own type."""
    writer = gguf.GGUFWriter(file, DRAFTER)
    for name, tensor in weights.items():
        weight = round_linear(tensor, "q8_0") if tensor.ndim == 2 and tensor.is_floating_point() else tensor
        if isinstance(weight, Blocks):
            writer.add_tensor(name, weight.rows, raw_dtype=gguf.GGMLQuantizationType[weight.type])
        else:
            writer.add_tensor(name, np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
