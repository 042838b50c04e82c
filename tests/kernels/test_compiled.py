"""Compile every Triton kernel for GPUs that are not here, and check that each keeps within its
means.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not made for this machine", allow_module_level=True)

from kernels.compile import CAPABILITIES, OTHER_DTYPES_ON

ROOT = Path(__file__).parents[2]
MAX_SHARED_BYTES = 99 * 1024  # what one program may have on every GPU from sm_80 on
# Bytes that ptxas spills where it rather has one program more on a multiprocessor than registers for it.
# Attention: on sm_90 with Triton 3.7.1, on sm_100 with 3.6.0.
FEW_SPILLED = {("_finish_kernel", 100): 8, ("_finish_kernel", 120): 8}
FEW_SPILLED |= {("ragged_attention_kernel", capability): 24 for capability in (90, 100)}
REGISTERS = 65536  # of one multiprocessor
MIN_THREADS = 256  # that must find room there, or nothing hides the memory's latency
VECTOR = re.compile(r"ld\.global\S*\.(v4\.b32|v2\.b64)|cp\.async\.cg\.shared\.global \[[^\]]*\], \[[^\]]*\], (0x10|16)")
NARROW = re.compile(r"ld\.global\S*\.b16\b")
BLOCK = re.compile(r"^\$L__BB\w+:", re.MULTILINE)  # the label of a basic block
ARITHMETIC = re.compile(r"\b((?:fma|mul|add|sub|ex2)\.[\w.]*f32(?:x2)?)\b")
CONTRACTIBLE = re.compile(r"\b(?:mul|add|sub)\.(?:ftz\.)?f32(?:x2)?\b")  # no rounding: ptxas may make an fma of two
TENSOR_CORES = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)")

pytestmark = pytest.mark.slow


IN_CI = OTHER_DTYPES_ON[-1:]
OTHERS = tuple(capability for capability in CAPABILITIES if capability not in IN_CI)


@pytest.fixture(scope="module", params=[IN_CI, pytest.param(OTHERS, marks=pytest.mark.extended)], ids=str)
def capabilities(request) -> tuple[int, ...]:
    """Return the GPUs compiled for: one in CI, the others take minutes more."""
    return request.param


@pytest.fixture(scope="module")
def kernels(capabilities, tmp_path_factory) -> list[dict[str, object]]:
    """Return what `python -m kernels.compile` prints of all kernels, in processes without the
    interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))  # what was compiled before proves nothing

    def of(capability: int) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "kernels.compile", str(capability)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr[-8000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [kernel for kernels in pool.map(of, capabilities) for kernel in kernels]


def found(kernels, complaint):
    """Return one line for each kernel that `complaint` finds fault with."""
    lines = [(f"{k['module']}, {k['case']}, {k['kernel']}, sm_{k['capability']}", complaint(k)) for k in kernels]
    return [f"{name}: {line}" for name, line in lines if line]


def test_all_are_there(kernels, capabilities):
    files = [path for path in (ROOT / "kernels").rglob("*.py") if "def compile_cases(" in path.read_text()]
    assert {k["module"] for k in kernels} == {".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files}
    others = set(capabilities).intersection(OTHER_DTYPES_ON)
    for other_dtype, wanted in ((False, capabilities), (True, others)):
        there = cases(kernels, lambda k, kind=other_dtype: k["other_dtype"] == kind)
        known = {(module, case) for module, case, _ in there}
        assert there == {(*case, capability) for case in known for capability in wanted}
    assert {module for module, *_ in cases(kernels, lambda k: not k["other_dtype"])} == {k["module"] for k in kernels}


@pytest.mark.parametrize("page", ["README.md", "docs/decisions/0006-gpu-engine.md"])
def test_documents_name_the_gpus_that_are_compiled_for(page):
    assert set(re.findall(r"\bsm_(\d+)", (ROOT / page).read_text())) == set(map(str, CAPABILITIES))


def test_nothing_or_a_few_values_are_spilled(kernels):
    def complaint(k):
        most = FEW_SPILLED.get((k["kernel"], k["capability"]), 0)
        return k["stack_bytes"] > most and f"{k['stack_bytes']} bytes, {k['registers']} registers"

    assert not found(kernels, complaint)


def test_shared_memory_suffices_on_every_gpu(kernels):
    assert not found(kernels, lambda k: k["shared_bytes"] > MAX_SHARED_BYTES and f"{k['shared_bytes']} bytes")


def test_registers_leave_room_for_enough_threads(kernels):
    def complaint(k):
        threads = REGISTERS // (k["registers"] * k["threads"]) * k["threads"]
        return threads < MIN_THREADS and f"{k['registers']} registers: {threads} threads"

    assert not found(kernels, complaint)


def cases(kernels, matches):
    """Return (module, case, capability) of the kernels that match."""
    return {(k["module"], k["case"], k["capability"]) for k in kernels if matches(k)}


def test_values_are_read_sixteen_bytes_at_a_time(kernels):
    reading = cases(kernels, lambda k: k["reads_rows"])
    assert reading and reading <= cases(kernels, lambda k: VECTOR.search(k["ptx"]))
    assert not reading & cases(kernels, lambda k: NARROW.search(k["ptx"]))


def test_products_use_tensor_cores(kernels):
    assert cases(kernels, lambda k: k["has_dot"])
    assert cases(kernels, lambda k: k["has_dot"]) == cases(kernels, lambda k: TENSOR_CORES.search(k["ptx"]))


def test_nothing_is_computed_in_double(kernels):
    assert not found(kernels, lambda k: ".f64" in k["ptx"] and "double precision")


def test_both_loops_of_attention_round_alike(kernels, capabilities):
    """A row meets a key in the loop without a mask or in the one with it, depending on its company.

    So both must do the same arithmetic: no multiply-add may feed the power in one of them alone.
    """
    attention = [k for k in kernels if k["kernel"] == "ragged_attention_kernel"]
    with_both = [k for k in attention if "window" not in k["case"]]  # with a window all keys are masked
    assert {k["capability"] for k in with_both} == set(capabilities)

    def complaint(k):
        blocks = [Counter(ARITHMETIC.findall(block)) for block in BLOCK.split(k["ptx"])]
        blocks = [block for block in blocks if block["ex2.approx.ftz.f32"]]  # one or more of a loop
        half = len(blocks) // 2
        return (not half or blocks[:half] != blocks[half:]) and str(blocks)

    assert not found(with_both, complaint)
    assert not found(attention, lambda k: CONTRACTIBLE.search(k["ptx"]))


def test_attention_prefetches_keys_and_values(kernels, capabilities):
    """Three stages: while 64 keys are added, both loops have the next 64 and their values under way."""
    verify = [k for k in kernels if k["case"].startswith("verify a") and "bf16" in k["case"]]
    verify = [k for k in verify if k["kernel"] == "ragged_attention_kernel"]
    assert {k["capability"] for k in verify} == set(capabilities)
    assert not found(verify, lambda k: k["buffers"].count("2x64x128xbf16") != 4 and str(k["buffers"]))


def test_a_path_is_loaded_whole_before_any_of_it_is_stored(kernels):
    """The interpreter cannot miss the barrier: here are the instructions in their order."""
    commits = [k for k in kernels if k["module"] == "kernels.attention.kv_commit"]
    assert commits
    for k in commits:
        order = re.findall(r"\b(LDG|STG|BAR\.SYNC)", k["sass"])
        first_store = order.index("STG")
        last_load = max(i for i, name in enumerate(order) if name == "LDG")
        assert "BAR.SYNC" in order[last_load:first_store], (k["case"], k["capability"], order)
