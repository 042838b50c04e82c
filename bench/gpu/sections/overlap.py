"""Measure the gain of drafting beside verifying on one GPU, its multiprocessors divided between the two or not.

`verify_ms`: a captured step of the target, `draft_ms`: GUESSES captured steps of a drafter of two of its layers, each
alone on its side; `both_ms` until both are done, begun at once. `gain`: the time of one after the other with all
multiprocessors, over `both_ms`. Both sides' streams are of one division (`app.engine.gpu.sm_partition`); kernels report
on which multiprocessors they ran, and a division that divides nothing is an error.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from app.engine.gpu.runner import DeviceRunner
from app.engine.gpu.sm_partition import Multiprocessors, divided
from app.engine.gpu.weights import Weights
from app.errors import InstanceError
from app.placement.partition import Partition
from bench.gpu.random_models import EIGHT_B, TINY, random_weights, room, runner_of
from bench.gpu.sections.steps import Point, replay_of, works_of
from bench.gpu.setting import Figures, Setting

GUESSES = 4  # of the drafter, while the target verifies as many
DIVISIONS = (0, 16, 32, 48, 64)  # multiprocessors for drafting; 0: two streams, no division
LAYERS = 2


@dataclass(frozen=True, slots=True)
class Models:
    """The weights of a target and of its drafter, and the vocabulary that they share."""

    target: Weights
    drafter: Weights
    vocab: int


def measure(setting: Setting, found: Figures) -> None:
    """Write the times of every batch and division into `found`."""
    shape = TINY if setting.is_quick else EIGHT_B
    small = replace(shape, name=f"{shape.name}, {LAYERS} layers", layers=LAYERS, vocab=min(shape.vocab, 16384))
    models = Models(random_weights(setting, shape), random_weights(setting, small), small.vocab)
    found["target"], found["drafter"], found["batches"] = shape.name, small.name, {}
    divisions = _divisions(setting) if setting.device.type == "cuda" else {}
    for point in _points(setting.is_quick):
        if not setting.has_time():
            break
        serial = _line(setting, models, point, None)
        run = partial(_divided, setting, models, point, divisions, serial)
        found["batches"][point.batch] = [serial, *setting.lines(({"drafting": n} for n in divisions), run)]
        print(f"batch {point.batch:3} {serial}", flush=True)


def _points(is_quick: bool) -> Iterator[Point]:
    batches, context = ((1,), 24) if is_quick else ((8, 1, 32), 512)
    for batch in batches:
        yield Point(context, batch, 1 if is_quick else GUESSES)


def _divisions(setting: Setting) -> dict[int, Partition | str]:
    """Make every division once; for one that the driver cannot make, the reason."""
    found: dict[int, Partition | str] = {}
    for drafting in DIVISIONS:
        try:
            found[drafting] = divided(setting.device, drafting)
        except InstanceError as error:
            found[drafting] = str(error)
    return found


def _divided(
    setting: Setting,
    models: Models,
    point: Point,
    divisions: dict[int, Partition | str],
    serial: Figures,
    drafting: int,
) -> Figures:
    """Measure one division; return its line."""
    sides = divisions[drafting]
    if isinstance(sides, str):
        return {"error": sides}
    assert isinstance(sides.verify, Multiprocessors) and isinstance(sides.draft, Multiprocessors)
    line = _line(setting, models, point, (sides.verify, sides.draft))
    places = {"verify_multiprocessors": len(sides.verify.places), "draft_multiprocessors": len(sides.draft.places)}
    gain = (serial["verify_ms"] + serial["draft_ms"]) / line["both_ms"]
    return {**line, **places, "is_real": sides.is_real, "gain": round(gain, 3)}


@torch.inference_mode()
def _line(
    setting: Setting, models: Models, point: Point, sides: tuple[Multiprocessors, Multiprocessors] | None
) -> Figures:
    """Time both kinds of step, alone and both at once; without sides one after the other."""
    tokens = room(point.batch, point.context + point.drafted + 1)
    verify_stream, draft_stream = (side.stream for side in sides) if sides else (None, None)
    runners = [runner_of(weights, tokens) for weights in (models.target, models.drafter)]  # held: replays use them
    verify = _step(runners[0], point, models.vocab, verify_stream)
    draft = _step(runners[1], replace(point, drafted=0), models.vocab, draft_stream)

    def drafts() -> None:
        for _ in range(GUESSES):
            draft()

    works = [(verify, verify_stream), (drafts, draft_stream)]
    return {
        "verify_ms": round(setting.device_ms(lambda: _run(works[:1])), 4),
        "draft_ms": round(setting.device_ms(lambda: _run(works[1:])), 4),
        "both_ms": round(setting.device_ms(lambda: _run(works)), 4),
    }


def _step(runner: DeviceRunner, point: Point, vocab: int, stream: Any) -> Callable[[], None]:
    """Capture a step on this stream and return its replay."""
    with _on(stream):
        works = works_of(runner, point, vocab)
        replay = replay_of(runner, works)
    assert replay is not None
    return replay


def _run(works: list[tuple[Callable[[], None], Any]]) -> None:
    """Run each piece of work on its stream; later work on the present stream waits for all."""
    streams = [stream for _, stream in works if stream is not None]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for work, stream in works:
        with _on(stream):
            work()
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)


def _on(stream: Any) -> Any:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
