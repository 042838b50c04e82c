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


def decode(target: Streams, draft: Streams, prompt: list[int], max_tokens: int) -> list[int]:
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


def _guesses(draft: Streams, text: list[int], most: int) -> list[int]:
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
    target, draft = (Streams(file, threads, 1, context) for file in sys.argv[1:3])

    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        return [decode(target, draft, prompt, max_tokens) for prompt in prompts]

    return run


if __name__ == "__main__":
    serve(load)
