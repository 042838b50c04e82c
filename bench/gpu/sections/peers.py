"""Compare plain decoding by the engine with transformers' `generate`: one request, the 1B shape, tokens a second.

Assisted generation has a random assistant of two layers, which is hardly ever right: its cost shows, not its gain. The
compiled static cache comes last, and only if there is time to compile.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from app.engine.gpu.weights import take
from bench.gpu.random_models import ONE_B, TINY, random_model, room, runner_of
from bench.gpu.sections.model import own_text
from bench.gpu.setting import Figures, Setting
from bench.gpu.texts import generate
from bench.stats import median

COMPILING_S = 50.0  # to be left for it


def measure(setting: Setting, found: Figures) -> None:
    """Write each version's tokens a second, and whether the texts are the same, into `found`."""
    shape = TINY if setting.is_quick else ONE_B
    length = 4 if setting.is_quick else 128
    prompt = [(i * 7919 + 13) % shape.vocab for i in range(8 if setting.is_quick else 64)]
    model, assistant = random_model(setting, shape), random_model(setting, replace(shape, layers=2), seed=1)
    say = partial(own_text, model, prompt, length)
    own = _rate(setting, "generate", say, found)
    _try(setting, "generate, static cache", partial(say, cache_implementation="static", disable_compile=True), found)
    _try(setting, "generate, assisted", partial(say, assistant_model=assistant), found)
    runner = runner_of(take(model), room(1, len(prompt) + length))
    text = _rate(setting, "engine", lambda: generate(runner, [prompt], length)[0], found)
    if setting.device.type == "cuda" and not setting.is_quick and setting.left_s() > COMPILING_S:
        _try(setting, "generate, static cache, compiled", partial(say, cache_implementation="static"), found)
    found["same_text"] = own == text
    found["engine / generate"] = round(found["engine"] / found["generate"], 3)


def _try(setting: Setting, name: str, say: Callable[[], list[int]], found: Figures) -> None:
    """Measure a rate; record an error, as a version of transformers may lack the feature."""
    try:
        _rate(setting, name, say, found)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"[:500]
        print(f"{name:34} {found[name]}", flush=True)


def _rate(setting: Setting, name: str, say: Callable[[], list[int]], found: Figures) -> list[int]:
    """Write the median tokens a second, the prompt's reading included, into `found`; return the text's token ids."""
    text = say()
    rates = []
    for _ in range(2):
        started = time.perf_counter()
        text = say()
        rates.append(len(text) / (time.perf_counter() - started))
    found[name] = round(median(rates), 2)
    print(f"{name:34} {found[name]} tokens/s", flush=True)
    return text
