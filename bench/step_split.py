"""`python -m bench.step_split`: say where a step's time goes: each product, the head, and the rest.

A part's time is what a step takes less without it: its kernel is replaced by one that does nothing.
The rest is attention, norms, rounding, the meetings of threads, and Python. Logits are garbage
meanwhile, times are not: nothing here depends on values.
"""

import json
import os
import sys
import time
from typing import Any

from app.config import ROOT, THREAD_ENVIRONMENT, Settings

os.environ.update({**THREAD_ENVIRONMENT, **os.environ})  # before torch is loaded, as in the workers

from app.assembly.devices import target_runner
from app.engine.profile.profiler import CONTEXT, a_step
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import target_folder
from bench.report_header import machine
from bench.stats import median
from kernels.cpu.products.linear import ARGUMENTS
from kernels.cpu.shapes import DOWN, GATE_UP, OUT, WEIGHTS, K, Model, Q, V
from kernels.jit import Native

ROWS = (1, 4, 8)
ROUNDS = 40
REST_S = 0.002
PARTS = {"q, k, v": (Q, K, V), "attention's output": (OUT,), "gate and up": (GATE_UP,), "down": (DOWN,)}


def main() -> int:
    """Measure, print and write the figures; return the exit status."""
    settings = Settings.from_env()
    folder = target_folder(settings)
    runner: Any = target_runner(folder, settings, Tokenizer(folder).context_tokens)
    idle = Native(_nothing, "nothing", ARGUMENTS).address
    figures = {
        "machine": machine(),
        "weights": settings.weights,
        "activations": settings.activations,
        "context": CONTEXT,
        "rows": {rows: _split(runner, rows, idle) for rows in ROWS},
    }
    name = settings.weights if settings.activations == "float32" else "integers"
    (ROOT / "bench" / "results" / f"step-split-{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0


def _split(runner: Any, rows: int, idle: int) -> dict[str, float]:
    """Time steps of a token and a chain below it, whole and without each part, by turns; return ms by part.

    `idle`: the address of a kernel that does nothing.
    """
    with a_step(runner, runner.model.vocab_size, rows) as step:
        whole: Model = runner.model._model  # now that a step has given it the addresses of its cache
        models = {"whole": whole, **{name: _without(whole, slots, idle) for name, slots in PARTS.items()}}
        models["head"] = whole._replace(head_kernel=idle)
        models["rest"] = _without(whole, WEIGHTS, idle)._replace(head_kernel=idle)
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(ROUNDS):
            for name, model in models.items():
                runner.model._model = model
                times[name].append(step())
                time.sleep(REST_S)
        runner.model._model = whole
    ms = {name: 1e3 * median(found) for name, found in times.items()}
    kept = {name: found if name in ("whole", "rest") else ms["whole"] - found for name, found in ms.items()}
    return {name: round(found, 2) for name, found in kept.items()}


def _without(model: Model, slots: tuple[int, ...], idle: int) -> Model:
    layers = model.layers.copy()
    layers[:, list(slots)] = idle
    return model._replace(layers=layers)


def _nothing(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> None:
    """Do nothing, with the arguments of a product's kernel."""


if __name__ == "__main__":
    sys.exit(main())
