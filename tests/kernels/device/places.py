"""Choose where the kernels' tests run: on a GPU, or in Triton's interpreter. Import it before any
kernel.
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

if INTERPRETED:
    from kernels.interpreter import prepare_once

    prepare_once()

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# The interpreter is slow, and keeps bfloat16 as integers and is silently wrong with it.
SELDOM = pytest.param(torch.float16, marks=pytest.mark.extended)
DTYPES = [torch.float32, SELDOM] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
