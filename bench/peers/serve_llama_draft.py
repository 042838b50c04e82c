"""Serve llama.cpp with a draft model, one prompt after the other: `serve_llama_draft.py MODEL.gguf
DRAFT.gguf THREADS CONTEXT`.

Drafts as its own server does by default: greedily, up to DRAFT_MOST tokens, until the draft model gives its
likeliest token less than DRAFT_LEAST. The target checks them in one batch.
"""

import logging
import sys
from itertools import takewhile

import numpy as np
from child import Answer, Run, serve
from serve_llama import Streams

DRAFT_MOST, DRAFT_LEAST = 16, 0.75


class Stream(Streams):
    """One stream over one model, of which several tokens are read at once and taken back."""

    def __init__(self, file: str, threads: int, context: int) -> None:
        """Load the model; see `Streams`."""
        super().__init__(file, threads, 1, context)

    @property
    def held(self) -> int:
        """Return how many tokens it has the keys and values of."""
        return len(self._held[0])

    def begin(self, prompt: list[int]) -> None:
        """Drop all but the beginning that a prompt shares with what is held."""
        self._begin(0, prompt)

    def keep(self, tokens: int) -> None:
        """Drop all but the first tokens."""
        self._keep(0, tokens)

    def read(self, tokens: list[int], wanted: int) -> list[np.ndarray]:
        """Read tokens; return the logits (V,) float32 after each of the last `wanted`, kept until the next call."""
        return self._read([(0, tokens)], wanted)


def decode(target: Stream, draft: Stream, prompt: list[int], max_tokens: int) -> list[int]:
    """Return the target's own `max_tokens` tokens after a prompt."""
    text = list(prompt)
    target.begin(prompt)
    draft.begin(prompt)
    while len(text) - len(prompt) < max_tokens:
        guesses = _guesses(draft, text, max_tokens - (len(text) - len(prompt)) - 1)
        logits = target.read([*text[target.held :], *guesses], len(guesses) + 1)
        chosen = [int(row.argmax()) for row in logits]
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(guesses, chosen, strict=False)))
        text += chosen[: right + 1]
        for stream in (target, draft):
            stream.keep(min(stream.held, len(text) - 1))
    return text[len(prompt) :]


def _guesses(draft: Stream, text: list[int], most: int) -> list[int]:
    guesses: list[int] = []
    while len(guesses) < min(most, DRAFT_MOST):
        (row,) = draft.read([*text, *guesses][draft.held :], 1)
        best = int(row.argmax())
        if 1.0 / np.exp(row - row[best]).sum() < DRAFT_LEAST:
            break
        guesses.append(best)
    return guesses


def load() -> Run:
    """Load both models."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    threads, context = map(int, sys.argv[3:])
    target, draft = (Stream(file, threads, context) for file in sys.argv[1:3])

    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        return [decode(target, draft, prompt, max_tokens) for prompt in prompts]

    return run


if __name__ == "__main__":
    serve(load)
