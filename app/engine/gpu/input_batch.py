"""Named arrays that lie side by side in one buffer, written on the host and sent to the device in one copy."""

import math
from collections.abc import Mapping

import numpy as np
import torch

ALIGNMENT = 16  # bytes: the widest load of a kernel
Fields = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class Arrays:
    """`host[name]` is a numpy view, `device[name]` a tensor of the same shape at an address that never changes.

    Whoever writes to the host's side has seen a result of the step that the last `send` was for: the copy is over.
    """

    def __init__(self, fields: Fields, device: torch.device) -> None:
        starts: dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in fields.items():
            starts[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._host = torch.zeros(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.host: dict[str, np.ndarray] = {}
        self.device: dict[str, torch.Tensor] = {}
        for name, (dtype, shape) in fields.items():
            size = math.prod(shape) * dtype.itemsize
            part = slice(starts[name], starts[name] + size)
            self.host[name] = self._host[part].numpy().view(_NUMPY[dtype]).reshape(shape)
            self.device[name] = self._device[part].view(dtype).view(shape)

    def send(self) -> None:
        """Copy the host's side to the device, in the order of the current stream."""
        self._device.copy_(self._host, non_blocking=True)
