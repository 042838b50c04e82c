"""Serve transformers' `generate`, float32, one prompt after the other: `serve_transformers.py FOLDER THREADS`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from child import Answer, Run, serve

from app.engine.weights.hf_reader import read


def load() -> Run:
    """Load the model, without an end token."""
    torch.set_num_threads(int(sys.argv[2]))
    model = read(Path(sys.argv[1])).eval()
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def run(prompts: list[list[int]], max_tokens: int) -> Answer:
        found = []
        for prompt in prompts:
            out = model.generate(torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0)
            found.append(out[0, len(prompt) :].tolist())
        return found

    return run


serve(load)
