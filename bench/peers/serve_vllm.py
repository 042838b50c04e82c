"""Serve vLLM on the CPU, eager, float32: `serve_vllm.py FOLDER THREADS CONTEXT`."""

import os
import sys

from child import Answer, Run, serve

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{int(sys.argv[2]) - 1}")


def load() -> Run:
    """Load the model; prompts of a job run at once, without prefix caching, as the prompts' beginnings are alike."""
    from vllm import LLM, SamplingParams

    model = LLM(
        sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=int(sys.argv[3]), enable_prefix_caching=False
    )

    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        wish = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        found = model.generate([{"prompt_token_ids": prompt} for prompt in prompts], wish, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    return run


if __name__ == "__main__":  # vLLM starts processes that import this file
    serve(load)
