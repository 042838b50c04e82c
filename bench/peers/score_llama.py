"""Write llama.cpp's logits after each token: `score_llama.py MODEL.gguf OUT.npy`, lists of token ids
as JSON on stdin."""

import json
import sys

import llama_cpp
import numpy as np

pieces = json.load(sys.stdin)
longest = max(map(len, pieces))
model = llama_cpp.Llama(sys.argv[1], n_ctx=longest, n_batch=longest, logits_all=True, n_threads=2, verbose=False)
found = []
for ids in pieces:
    model.reset()
    model.eval(ids)
    found.append(np.array(model.scores[: len(ids)], np.float32))
np.save(sys.argv[2], np.concatenate(found))
