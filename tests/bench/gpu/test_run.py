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
from bench.gpu.sections.loop import DRAFTED
from bench.gpu.setting import Setting
from tests import fakes
from tests.bench.gpu import bare

ROOT = Path(__file__).parents[3]


@pytest.mark.extended
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
    assert figures["steps"]["tiny"]["steps"][0]["kernels_us"]
    assert "compute-sanitizer is not here" in figures["sanitizer"]["left_out"]
    products = figures["products"]["products"]
    assert len(products) == 5 and all(line["ms"] > 0 and ("fp8_ms" in line or line["fp8_error"]) for line in products)
    machine = figures["machine"]
    assert machine["gcc"].startswith(("gcc", "unknown: ")) and machine["packages"]["llvmlite"]
    tilings = figures["bandwidth"]["tilings"]
    assert tilings[-1]["kind"] == "contiguous keys" and min(line["ms"] for line in tilings) > 0
    compared = figures["parity"]["captured to eager"]
    assert compared["rows_with_other_bits"] == 0 < compared["moved"] < compared["rows"]
    assert figures["exact"]["tiny"]["exact"]["in company"]["rows"] > 0
    plain, drafting = figures["loop"]["tiny"]
    assert plain["tokens_a_round"] == 1.0 and min(line["gpu_ms"] for line in (plain, drafting)) > 0
    assert 1.0 <= drafting["tokens_a_round"] <= 1.0 + DRAFTED


def test_bars_hold_fail_or_were_not_measured():
    lines = [
        {"context": 512, "batch": 1, "drafted": 0, "gpu / floor": 1.2, "wall / floor": 1.3},
        {"context": 512, "batch": 8, "drafted": 0, "gpu_ms": 4.0},
        {"context": 512, "batch": 8, "drafted": 7, "gpu_ms": 4.5},
    ]
    loop = [
        {"requests": requests, "drafted": drafted, "tokens_s": pace, "serial_tokens_s": 100.0}
        for requests, drafted, pace in ((1, 0, 200.0), (1, 4, 310.0), (16, 0, 3000.0), (16, 4, 2900.0))
    ]
    overlap = {8: [{"verify_ms": 5.0}, {"drafting": 0, "gain": 0.9}, {"drafting": 16, "gain": 1.1}]}
    attention = [{"context": 32768, "batch": batch, "of_copy": batch / 10} for batch in (1, 8, 64)]
    figures = {"steps": {"8B": {"steps": lines}}, "bandwidth": {"attention": attention}}
    figures |= {"loop": {"8B": loop}, "overlap": {"batches": overlap}}
    found = {}
    bars.measure(Setting(torch.device("cpu"), False, None, figures), found)
    holds = {name: bar["holds"] for name, bar in found.items() if bar["holds"] is not None}
    assert holds == {
        "attention, 32k keys, batch 8 and 64, of copy bandwidth, as it is": True,
        "8B, one token / floor, gpu": True,
        "8B, one token / floor, wall": False,
        "8B, 8 tokens / 1 token, batch 8, 512 in the cache, gpu": False,
        "8B, drafts on / off, 1 at once, tokens/s": True,
        "8B, drafts on / off, 16 at once, tokens/s": False,
    }
    stated = {name: bar["measured"] for name, bar in found.items() if bar.keys() == {"measured", "holds"}}
    assert stated["8B, drafting beside verifying / after it, batch 8, best division"] == 1.1
    assert stated["8B, the host beside the device / after it, 16 at once, 4 drafts, tokens/s"] == 29.0
