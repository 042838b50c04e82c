"""Time every kernel against its reference on the device at hand: `python -m kernels.bench`.

On a GPU the Triton kernels; without one only the kernels for CPUs, and the others' references for
what they are worth there. Medians. A reference is the plain specification and rarely a rival: read
the kernels' own column first.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kernels.bench_cases import Case, all_cases


def main() -> None:
    """Read the arguments and print the table, a line a case."""
    options = _options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(options.threads)
    if device.type == "cuda":
        print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    else:
        print(f"No GPU: the Triton kernels are left out. {options.threads} CPU threads, torch {torch.__version__}")
    print(f"\n{'kernel':<22}{'case':<46}{'reference ms':>14}{'kernel ms':>12}{'ratio':>9}{'GB/s':>9}")
    for case in all_cases(device, options.rows, options.vocab_size):
        if options.only in case.kernel:
            print(_line(case, device, options.seconds), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only kernels whose name holds this text")
    parser.add_argument("--rows", type=int, default=64, help="rows of logits, trees or places in a batch")
    parser.add_argument("--vocab-size", type=int, default=49152, help="tokens of the vocabulary")
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each timing, at most about")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads torch may use")
    return parser.parse_args()


def _line(case: Case, device: torch.device, seconds: float) -> str:
    reference_ms = median_ms(case.reference, case.reference_device, seconds)
    where = " (on the CPU)" if case.reference_device != device else ""
    text = f"{case.kernel:<22}{case.name + where:<46}{reference_ms:>14.3f}"
    if case.run is None:
        return text + f"{'-':>12}"
    kernel_ms = median_ms(case.run, device, seconds)
    rate = f"{case.bytes_read / kernel_ms / 1e6:>9.1f}" if case.bytes_read else ""
    return text + f"{kernel_ms:>12.3f}{reference_ms / kernel_ms:>9.1f}{rate}"


def median_ms(run: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return the median time of a call in milliseconds.

    Calls it once to warm up, then for about `seconds`, at least three times. A GPU is timed by its
    own clock.
    """
    clock = _gpu_ms if device.type == "cuda" else _cpu_ms
    clock(run)
    end = time.perf_counter() + seconds
    times: list[float] = []
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        times.append(clock(run))
    return statistics.median(times)


def _cpu_ms(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3


def _gpu_ms(run: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


if __name__ == "__main__":
    main()
