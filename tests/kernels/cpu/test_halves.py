"""Test that float16 is stored as numpy rounds to it, up to its largest, with the processor's conversion and without."""

import numba
import numpy as np
import pytest

from kernels.cpu import simd
from kernels.cpu.simd import LANES, load, scatter_halves, store_halves

SPECIAL = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 1e9, -1e9, np.inf, -np.inf, 2.0**-14, 2.0**-24, 2.0**-25]
TIES = [1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 2.0**-14 - 2.0**-25, 3 * 2.0**-25, 2.0**-25 * 1.0001, -(2.0**-26)]
rng = np.random.default_rng(5)


@pytest.mark.parametrize("has_f16c", [True, False])
def test_halves_are_those_of_numpy(has_f16c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if has_f16c and not simd.processor_has("f16c"):
        pytest.skip("this processor has no such conversion")
    monkeypatch.setattr(simd, "processor_has", lambda feature: has_f16c)

    @numba.njit
    def write(x, out, scattered):
        for i in range(0, len(x), LANES):
            value = load(x.ctypes.data + 4 * i)
            store_halves(out.ctypes.data + 2 * i, value)
            scatter_halves(scattered.ctypes.data + 4 * i, 4, value)  # every other place

    random = rng.integers(0, 2**32, 2**16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([np.array([*SPECIAL, *TIES], np.float32), random])[: 2**16 - 64]
    x = np.where(np.isnan(x), np.float32(np.nan), x)
    out, scattered = np.zeros(len(x), np.float16), np.zeros(2 * len(x), np.float16)
    write(x, out.view(np.int16), scattered.view(np.int16))  # numba has no arrays of float16
    most = np.finfo(np.float16).max
    wanted = x.clip(-most, most).astype(np.float16)
    for found in (out, scattered[::2]):
        assert (np.isnan(found) == np.isnan(wanted)).all()
        assert (found.view(np.int16) == wanted.view(np.int16))[~np.isnan(wanted)].all()
    assert not scattered[1::2].any()
