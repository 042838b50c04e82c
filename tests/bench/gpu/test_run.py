"""Test the GPU's benchmark: all of it runs on tiny models in Triton's interpreter, and its bars are
right."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu.sections import bars
from bench.gpu.setting import Setting
from tests import fakes
from tests.bench.gpu import bare

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not made for this machine")
def test_all_sections_run_in_the_interpreter(tmp_path):
    folder, out = tmp_path / "model", tmp_path / "gpu.json"

    fakes.tiny(vocab_size=64).save_pretrained(folder)
    done = subprocess.run(
        [sys.executable, "bench/gpu/run.py", "--quick", "--device", "cpu", "--model", str(folder), "--out", str(out)],
        cwd=ROOT,
        env=bare.environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    figures = json.loads(out.read_text())
    assert figures["errors"] == {}
    assert figures["model"]["float32"]["same"] == 2
    assert figures["steps"]["tiny"]["steps"][0]["gpu_ms"] > 0


def test_bars_hold_fail_or_were_not_measured():
    lines = [
        {"context": 512, "batch": 1, "drafted": 0, "gpu / floor": 1.2, "wall / floor": 1.3},
        {"context": 512, "batch": 8, "drafted": 0, "gpu_ms": 4.0},
        {"context": 512, "batch": 8, "drafted": 7, "gpu_ms": 5.0},
    ]
    attention = [{"context": 32768, "batch": batch, "of_copy": batch / 10} for batch in (1, 8, 64)]
    figures = {"steps": {"8B": {"steps": lines}}, "bandwidth": {"attention": attention}}
    found = {}
    bars.measure(Setting(torch.device("cpu"), False, None, figures), found)
    holds = {name: bar["holds"] for name, bar in found.items() if bar["holds"] is not None}
    assert holds == {
        "attention, 32k keys, batch 8 and 64, of copy bandwidth, as it is": True,
        "8B, one token / floor, gpu": True,
        "8B, one token / floor, wall": False,
        "8B, 8 tokens / 1 token, batch 8, 512 in the cache, gpu": False,
    }
