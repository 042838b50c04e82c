"""Test that processors of several ages compute the same bits: this one, one with AVX2, one that multiplies bytes in
registers of 256 bits besides, and one with neither fused multiply-adds nor half precision, for which the same code is
compiled; and that the tests of products and attention hold for the second and third where this one has AVX-512.

The bits are kept here, so that they are compared with those of other machines, too.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from app.config import ROOT
from kernels.cpu.products.integer_formats import INTEGER_FORMATS
from kernels.cpu.products.integer_tile import instructions
from kernels.cpu.products.pack import pack_stored
from kernels.cpu.products.packed_linear import PackedLinear, is_exact
from kernels.cpu.products.row_blocks import ROUNDED, SCALED
from tests.kernels.cpu.products import test_formats, test_integer_products

KEPT = {
    "F32": "00d0fc9e0e42621e",
    "BF16": "87f28a45b721fdcb",
    "F16": "e7a4ad0d38627416",
    "integers of Q4_1": "1d5ec94bb07831b1",
    "floats of Q4_1": "3d673a81924414b0",
    "integers of Q8_0": "03339555f7e1d827",
    "floats of Q8_0": "7a33c815ba02d2fa",
    "integers of Q4_0": "3672453db7cfd04d",
    "floats of Q4_0": "b3ecbb3a48e8dc8c",
    "integers of Q4_K": "9a6bf9b08c5714ff",
    "floats of Q4_K": "730c9b0ec7347252",
    "integers of Q5_0": "5152db39a8210a97",
    "floats of Q5_0": "11b5a8986d4fbeba",
    "integers of Q5_1": "1acad88692b80fe8",
    "floats of Q5_1": "e21657233bdda6d9",
    "integers of Q5_K": "f304f9f7312ea0d6",
    "floats of Q5_K": "b16bc168f9a590ff",
    "integers of Q6_K": "f0bcbc13a3c8eb44",
    "floats of Q6_K": "8cba8c7dc1e3e144",
}
FORMS = {"integers": ROUNDED, "floats": SCALED}
FROM_ONE_SEED = ("Q4_1", "Q8_0")  # of integers, in this order; each other type's numbers have a seed of their own
TESTS = Path(__file__).parents[1]
MASKED = (
    TESTS / "products",
    TESTS / "test_attention.py",
    TESTS / "test_halves.py",
)  # whose code depends on the processor
TYPES = {"nehalem": (*FROM_ONE_SEED, "Q6_K")}  # whose code takes longest to compile: one of each way to add a block
EIGHT_COLUMNS = "haswell with the bytes' products of AVX-512, in registers of 256 bits"
INSTRUCTIONS = {"haswell": "avx2", "nehalem": "any", EIGHT_COLUMNS: "vnni, 256 bits"}
FEATURES = {EIGHT_COLUMNS: "+avx512vl,+avx512vnni"}
ROWS, COLUMNS, DEPTH = 9, 48, 256


def computed(names: Sequence[str]) -> dict[str, object]:
    """Return the digests of the products of numbers that are the same everywhere, and how integers were multiplied.

    `names`: the types of integers, those of FROM_ONE_SEED among them.
    """
    rng, bias = np.random.default_rng(0), np.zeros(COLUMNS, np.float32)
    x, weight = (rng.standard_normal((n, DEPTH), dtype=np.float32) for n in (ROWS, COLUMNS))
    packed = PackedLinear(torch.from_numpy(weight), torch.from_numpy(bias))
    found = {"F32": packed(torch.from_numpy(x)).contiguous().numpy()}
    test_formats.raw("Q4_1", COLUMNS, DEPTH, rng)  # so that what is drawn after it stays as it was
    for name in ("BF16", "F16"):
        stored = test_formats.raw(name, COLUMNS, DEPTH, np.random.default_rng(list(name.encode())))
        found[name] = test_formats.times(name, x, pack_stored(name, stored, DEPTH), bias)
    is_same_alone = True
    for name in (*FROM_ONE_SEED, *(name for name in names if name not in FROM_ONE_SEED)):
        own = rng if name in FROM_ONE_SEED else np.random.default_rng(list(name.encode()))
        depth = max(DEPTH, 2 * INTEGER_FORMATS[name].depth)
        w = pack_stored(name, test_integer_products.raw(name, COLUMNS, depth, own), depth)
        for kind, form in FORMS.items():
            rows = test_integer_products.written(np.tile(x, (1, depth // DEPTH)), form)
            whole = found[f"{kind} of {name}"] = test_integer_products.times(name, rows, w, bias)
            for count in range(1, len(rows)):
                is_same_alone &= bool((test_integer_products.times(name, rows[:count], w, bias) == whole[:count]).all())
    bits = {name: hashlib.sha256(np.ascontiguousarray(values)).hexdigest()[:16] for name, values in found.items()}
    return {"bits": bits, "is_exact": is_exact(), "is_same_alone": is_same_alone, "instructions": instructions()}


@pytest.fixture(scope="module")
def compiled_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Give the environment in which kernels are compiled for another processor, each kernel once for all tests."""
    folder = tmp_path_factory.mktemp("compiled")

    def environment(processor: str) -> dict[str, str]:
        name, features = processor.split()[0], FEATURES.get(processor, "")
        return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(folder / processor)}

    return environment


def this_one_has(flag: str) -> bool:
    """Return whether the processor has a feature, as Linux names it."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and f" {flag} " in cpuinfo.read_text().replace("\n", " ")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for others of that kind")
@pytest.mark.parametrize(
    "processor",
    ["", *(pytest.param(name, marks=pytest.mark.extended) for name in INSTRUCTIONS)],
    ids=lambda name: name or "this one",
)
def test_the_bits_are_those_of_any_other_processor(
    processor: str, compiled_for: Callable[[str], dict[str, str]]
) -> None:
    if processor == "haswell" and not this_one_has("avx512f"):
        pytest.skip("this one has AVX2 at most: the run for itself is that for haswell")
    if processor == EIGHT_COLUMNS and not this_one_has("avx512_vnni"):
        pytest.skip("this one lacks them")
    names = TYPES.get(processor, tuple(sorted(INTEGER_FORMATS)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cpu.products.test_processors", *names],
        env={**os.environ, **(compiled_for(processor) if processor else {})},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = json.loads(done.stdout)
    wanted = {"F32", "BF16", "F16", *(f"{kind} of {name}" for name in names for kind in FORMS)}
    assert found["bits"] == {name: bits for name, bits in KEPT.items() if name in wanted}
    assert wanted <= KEPT.keys()
    assert found["is_exact"] and found["is_same_alone"]
    assert found["instructions"] == INSTRUCTIONS.get(processor, found["instructions"])


@pytest.mark.extended
@pytest.mark.skipif(platform.machine() != "x86_64" or not this_one_has("avx512f"), reason="has no AVX-512 to hide")
@pytest.mark.parametrize("processor", ["haswell", EIGHT_COLUMNS])
def test_the_kernels_tests_hold_without_avx512(processor: str, compiled_for: Callable[[str], dict[str, str]]) -> None:
    """Without it tiles are lower and integers are multiplied otherwise: code that no other test runs here."""
    if processor == EIGHT_COLUMNS and not this_one_has("avx512_vnni"):
        pytest.skip("this one lacks them")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, MASKED)]
    done = subprocess.run(
        [*command, f"--ignore={__file__}"],
        env={**os.environ, **compiled_for(processor)},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


if __name__ == "__main__":
    print(json.dumps(computed(sys.argv[1:])))
