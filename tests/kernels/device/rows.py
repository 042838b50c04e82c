"""Draw random rows of choices for the tests of this folder."""

import random
from collections import Counter

import numpy as np
import torch

from kernels.sampling.target_token import Choice, Row, filtered

VOCABULARIES = [61, 1000, 2049]
FILTERS = {  # each alone, then together
    "greedy": {"temperature": [0.0]},
    "free": {},
    "top_k": {"top_k": [1, 2, 7, 40, 60]},
    "top_p": {"top_p": [1e-300, 0.1, 0.5, 0.9, 0.999]},
    "min_p": {"min_p": [0.001, 0.05, 0.5, 1.0]},
    "top_k and top_p": {"top_k": [2, 7, 40, 10**6], "top_p": [0.3, 0.8, 0.95]},
    "all": {"temperature": [0.0, 0.5, 1.0, 2.0], "top_k": [0, 3, 30], "top_p": [0.4, 0.9, 1.0], "min_p": [0.0, 0.02]},
}


def row(draw: random.Random, vocab_size: int, filters: str = "all", edited: bool = False) -> Row:
    """Draw one row whose options are from FILTERS."""
    options = {"temperature": [0.7, 1.0, 1.6], **FILTERS[filters]}
    kinds = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} | {name: draw.choice(values) for name, values in options.items()}
    choice = Choice(**kinds, seed=draw.getrandbits(63), choice=draw.getrandbits(3))
    if not edited:
        return Row(choice, draw.randrange(10**4))
    some = tuple(draw.sample(range(vocab_size), draw.choice([1, 3, vocab_size // 2])))
    return Row(
        choice,
        draw.randrange(10**4),
        counts=Counter(draw.randrange(vocab_size) for _ in range(draw.choice([1, 50, 3000]))),
        frequency_penalty=draw.choice([0.0, 0.5, -0.25]),
        presence_penalty=draw.choice([0.0, 0.75, -1.5]),
        repetition_penalty=draw.choice([1.0, 1.3, 0.7]),
        bias={draw.randrange(vocab_size): draw.uniform(-9, 9) for _ in range(draw.choice([0, 1, 20]))},
        **draw.choice([{}, {"allowed": some}, {"mask": np.isin(np.arange(vocab_size), some)}]),
    )


def on_the_edge(y: torch.Tensor, choice: Choice) -> bool:
    """Return whether rounding decides what top-p keeps: then the order of the sums may."""
    if choice.temperature == 0.0 or choice.top_p == 1.0:
        return False
    kept = [
        filtered(y, Choice(choice.temperature, min(1.0, choice.top_p + shift), choice.top_k, choice.min_p, 0))[0]
        for shift in (-2e-6, 2e-6)
        if choice.top_p + shift > 0
    ]
    return any(len(one) != len(kept[0]) for one in kept)
