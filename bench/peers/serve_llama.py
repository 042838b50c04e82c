"""Serve llama.cpp through llama-cpp-python: `serve_llama.py MODEL.gguf THREADS`."""

import sys

import llama_cpp
from child import Answer, Run, serve


def load() -> Run:
    """Load the model; prompts run one at a time, as its Python interface batches nothing."""
    file, threads = sys.argv[1], int(sys.argv[2])
    model = llama_cpp.Llama(file, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        return [one(prompt, max_tokens) for prompt in prompts]

    def one(prompt: list[int], max_tokens: int) -> list[int]:
        tokens = []
        for token in model.generate(prompt, temp=0.0, top_k=1, reset=True):
            tokens.append(int(token))
            if len(tokens) == max_tokens:
                break
        return tokens

    return run


serve(load)
