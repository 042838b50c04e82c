"""List the sampling parameters of a row of logits.

A new one is a line of `PARAMETERS`, a field of `Limits` and of `kernels.sampling.choices.RowChoices`, and its
arithmetic in `target_token` and `target_token_batch`.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.sampling.target_token import MIN_TEMPERATURE, Choice

MIN_TOP_P = 1e-37  # a smaller one would be 0 in float32, and no token would be kept
PARAMETERS: dict[str, tuple[Any, float]] = {  # by name: the type, and the value of padding rows, which are greedy
    "temperature": (np.float32, 0.0),
    "top_p": (np.float32, 1.0),
    "log_min_p": (np.float32, -math.inf),
    "top_k": (np.int32, 0),
    "seed": (np.int64, 0),
    "choice": (np.int64, 0),
}


class Limits(NamedTuple):
    temperature: float  # 0 is greedy
    top_p: float
    log_min_p: float  # -inf keeps all
    top_k: int  # 0 keeps all
    seed: int
    choice: int


@lru_cache(maxsize=4096)  # each step of a request looks its own up
def limits_of(choice: Choice, vocab_size: int) -> Limits:
    return Limits(
        temperature=max(choice.temperature, MIN_TEMPERATURE) if choice.temperature else 0.0,
        top_p=max(choice.top_p, MIN_TOP_P),
        log_min_p=float(torch.log(torch.tensor(choice.min_p))) if choice.min_p else -math.inf,
        top_k=min(choice.top_k, vocab_size),
        seed=choice.seed,
        choice=choice.choice,
    )


class ParameterArrays(NamedTuple):
    """An array (R,) of each parameter, by type, in the order of `PARAMETERS`."""

    floats: tuple[np.ndarray, ...]  # float32
    ints: tuple[np.ndarray, ...]  # int32
    longs: tuple[np.ndarray, ...]  # int64


def parameter_arrays(by_name: Mapping[str, np.ndarray]) -> ParameterArrays:
    return ParameterArrays(
        *(
            tuple(by_name[name] for name, (of, _) in PARAMETERS.items() if of is kind)
            for kind in (np.float32, np.int32, np.int64)
        )
    )


def padding_values(kind: Any) -> np.ndarray:
    return np.array([value for of, value in PARAMETERS.values() if of is kind], kind)
