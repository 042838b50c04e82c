"""Serve llama.cpp through llama-cpp-python: `serve_llama.py MODEL.gguf THREADS TYPE`; converts the
file once."""

import sys
from pathlib import Path

import llama_cpp
from child import Answer, Run, serve

TYPES = {"F32": llama_cpp.LLAMA_FTYPE_ALL_F32, "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16, "Q8_0": 7}


def load() -> Run:
    """Load the model; prompts run one at a time, as its Python interface batches nothing."""
    source, threads, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    file = source.with_suffix(f".{kind}.gguf")
    if not file.exists():
        wish = llama_cpp.llama_model_quantize_default_params()
        wish.ftype, wish.allow_requantize = TYPES[kind], True
        llama_cpp.llama_model_quantize(str(source).encode(), str(file).encode(), wish)
    model = llama_cpp.Llama(str(file), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

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
