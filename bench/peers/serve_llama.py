"""Serve llama.cpp by the low-level interface of llama-cpp-python: `serve_llama.py MODEL.gguf THREADS STREAMS CONTEXT`.

All prompts of a job run at once, as in a llama-server of so many slots: a first batch holds what is new of every
prompt, each later one a token of every stream. A stream keeps what two prompts one after the other have in common at
their beginnings, as a slot does.
"""

import ctypes
import logging
import sys
from itertools import takewhile

import llama_cpp
import numpy as np
from child import Answer, Run, serve

Piece = tuple[int, list[int]]  # a stream, and the tokens that come next in it


class Streams:
    """Decode greedily in several streams over one model."""

    def __init__(self, file: str, threads: int, count: int, context: int) -> None:
        """Load the model; `context`: tokens of a stream, a multiple of 256.

        Each stream has a cache of its own, not a part of one: a little faster alone, and no slower together.
        """
        model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        wish = llama_cpp.llama_context_default_params()
        wish.n_ctx = wish.n_batch = count * context
        wish.n_seq_max, wish.kv_unified = count, False
        wish.n_threads = wish.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, wish)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(count * context, 0, 1)
        self._held: list[list[int]] = [[] for _ in range(count)]  # the tokens whose keys and values a stream has

    def run(self, prompts: list[list[int]], max_tokens: int) -> Answer:
        """Return `max_tokens` tokens after each prompt; no more prompts than streams."""
        pieces = [(stream, self.begin(prompt, stream)) for stream, prompt in enumerate(prompts)]
        for stream in range(len(prompts), len(self._held)):
            self.keep(0, stream)  # idle streams hold nothing
        answer: Answer = [[] for _ in prompts]
        for _ in range(max_tokens):
            chosen = self._decode(pieces)
            for tokens, token in zip(answer, chosen, strict=True):
                tokens.append(token)
            pieces = [(stream, [token]) for stream, token in enumerate(chosen)]
        return answer

    @property
    def held(self) -> int:
        """Return how many tokens the first stream has the keys and values of."""
        return len(self._held[0])

    def begin(self, prompt: list[int], stream: int = 0) -> list[int]:
        """Drop what a stream holds but the beginning that this prompt shares; return the prompt's rest."""
        pairs = zip(self._held[stream], prompt[:-1], strict=False)
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.keep(alike, stream)
        return prompt[alike:]

    def keep(self, tokens: int, stream: int = 0) -> None:
        """Drop all but a stream's first tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, stream, tokens, -1)
        del self._held[stream][tokens:]

    def read(self, tokens: list[int], wanted: int) -> list[np.ndarray]:
        """Read tokens into the first stream; return the logits (V,) float32 after each of the last `wanted`."""
        return self._read([(0, tokens)], wanted)

    def _decode(self, pieces: list[Piece]) -> list[int]:
        """Run one batch; return the likeliest token after each piece."""
        return [int(row.argmax()) for row in self._read(pieces, 1)]

    def _read(self, pieces: list[Piece], wanted: int) -> list[np.ndarray]:
        """Run one batch; return the logits (V,) after each of the last `wanted` tokens of each piece.

        They are llama.cpp's own memory, until the next batch.
        """
        batch, asked, n = self._batch, [], 0
        for stream, tokens in pieces:
            held = self._held[stream]
            for left, token in zip(range(len(tokens), 0, -1), tokens, strict=True):
                batch.token[n], batch.pos[n], batch.logits[n] = token, len(held), left <= wanted
                batch.n_seq_id[n], batch.seq_id[n][0] = 1, stream
                held.append(token)
                asked += [n] if left <= wanted else []
                n += 1
        batch.n_tokens = n
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._logits(i) for i in asked]

    def _logits(self, i: int) -> np.ndarray:
        where = llama_cpp.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(ctypes.cast(where, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,))


def load() -> Run:
    """Load the model."""
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    file, threads, streams, context = sys.argv[1], *map(int, sys.argv[2:])
    return Streams(file, threads, streams, context).run


if __name__ == "__main__":
    serve(load)
