"""`./paceline train`: make data by domain, distil a drafter from it, evaluate it on held-out prompts. See --help."""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.resolve import drafter_folder, resolve
from app.errors import InvalidRequest
from app.local.progress_line import ProgressLine
from training.data.batches import head_tokens, weighted
from training.data.dataset import Identity, Material, check_paths, gather
from training.data.rows import Row, split
from training.exit_codes import ended
from training.model import checkpoint, model_card
from training.model.checkpoint import Progress
from training.model.evaluate import evaluate, judged
from training.model.learner import GOLD, Learner, Recipe
from training.model.student import Student, drafter_weights, embedding_sha256, load_target
from training.options import MINUTES, Options, parse
from training.progress_bar import Report

PACE_STEPS = 12  # after which a training by minutes knows how many steps it will have
SCALED_BY = 256  # rows whose states give the mean and spread of all
FADE = 0.97  # of the mean loss at a step


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Exit codes as `app.cli.main` has them: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    return ended(lambda: run(parse(words), Settings.from_env()), "interrupted; the same command goes on from here")


def run(options: Options, settings: Settings) -> dict[str, Any]:
    """Make the data, train, evaluate, write the folder; return its card. Raises InvalidRequest, ModelRefused,
    GenerationFailed."""
    _check_out(options)
    check_paths(options)
    progress = ProgressLine()
    folder = resolve(options.target or settings.model, settings.home, progress)
    progress.end()
    torch.set_num_threads(max(options.threads, settings.verify_threads))
    target = load_target(folder)
    identity = Identity(Tokenizer(folder).sha256, embedding_sha256(target))
    material = gather(options, settings, folder, identity, target.config.hidden_size)
    kept, held_out = split(material.rows)
    rows = _chosen(kept, options)
    torch.set_num_threads(options.threads)
    student = _student(target, rows, options, identity)
    _say(f"{len(rows)} rows to learn from, {len(held_out)} kept out, {_millions(student)} M weights to train")
    if options.restart:
        checkpoint.remove(options.out)
    learner = Learner(student, rows, Recipe(options.seed, options.batch, options.rate, options.negatives))
    done = train(learner, options, _fingerprint(options, rows, student, identity))
    _say("measuring on what was kept out")
    scores = evaluate(student, judged(held_out, options.held_out))
    card = _card(options, identity, student, Material(rows, material.sources), done, scores)
    model_card.write(options.out, folder, _layers(target, options, len(student.layers)), student, card)
    checkpoint.remove(options.out)
    for domain, score in scores.items():
        print(f"{domain:<8}first token right {score['top1']:.3f}   tokens a round {score['tokens_per_round']:.2f}")
    _say(f"wrote {options.out}")
    return card


def train(learner: Learner, options: Options, fingerprint: str) -> Progress:
    """Take the steps that are left, writing checkpoints; return the progress at the end.

    The wall clock decides nothing but the number of steps of a training by minutes, once.
    Raises InvalidRequest for a checkpoint of another training.
    """
    at = checkpoint.load(options.out, learner, fingerprint)
    if at is not None:
        _say(f"going on from step {at.step}")
    at = at or Progress(fingerprint=fingerprint, step=0, total_steps=options.steps, seconds=0.0, loss=0.0)
    report = Report("training", at.total_steps, at.step)
    saved = time.monotonic()
    try:
        while at.total_steps is None or at.step < at.total_steps:
            at = _step(learner, at, options)
            report.total = at.total_steps
            report.advance(f"loss {at.loss:.3f}")
            if time.monotonic() - saved >= options.save_s or at.step == at.total_steps:
                checkpoint.save(options.out, learner, at)
                saved = time.monotonic()
    except KeyboardInterrupt:
        report.end()
        if learner.step == at.step:  # else interrupted within a step: the last checkpoint stands
            checkpoint.save(options.out, learner, at)
        raise
    return at


def _step(learner: Learner, at: Progress, options: Options) -> Progress:
    started = time.monotonic()
    loss = learner.learn(at.total_steps).total
    seconds, total = at.seconds + time.monotonic() - started, at.total_steps
    if total is None and learner.step == PACE_STEPS:
        total = max(PACE_STEPS, round(60 * (options.minutes or MINUTES) * PACE_STEPS / seconds))
    mean = loss if at.step == 0 else FADE * at.loss + (1 - FADE) * loss
    return at.model_copy(update={"step": learner.step, "total_steps": total, "seconds": seconds, "loss": mean})


def _check_out(options: Options) -> None:
    out = options.out
    if out.exists() and not out.is_dir():
        raise InvalidRequest("out", f"{out} is no folder")
    if (out / model_card.CARD).exists() and not (out / checkpoint.FILE).exists() and not options.restart:
        raise InvalidRequest("out", f"{out} holds a finished drafter; --restart trains it anew")


def _chosen(rows: list[Row], options: Options) -> list[Row]:
    domains = options.domains
    known = {row.domain for row in rows}
    if unknown := sorted({*domains} - known):
        raise InvalidRequest("domains", f"no row is of {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    if not rows:
        raise InvalidRequest("data", "too few rows: none is left to learn from once some are kept out")
    return weighted(rows, domains, options.others)


def _student(target: Any, rows: list[Row], options: Options, identity: Identity) -> Student:
    has_features = options.features and any(row.states is not None for row in rows)
    if options.features and not has_features:
        _say("the data holds no hidden states: the drafter will not read them")
    if options.init is None:
        head = head_tokens(rows, target.config.vocab_size, min(options.head, target.config.vocab_size))
        student = Student(target, _layers(target, options, len(options.layers)), head, has_features)
        if options.scratch:
            student.scramble(options.seed)
        _scale(student, rows)
        return student
    folder = drafter_folder(options.init)
    weights, layers = drafter_weights(folder, identity.embedding_sha256, identity.tokenizer_sha256)
    head = weights["head_ids"].tolist()
    student = Student(target, _layers(target, options, layers), head, has_features)
    _scale(student, rows)
    student.start_from(weights)
    return student


def _scale(student: Student, rows: list[Row]) -> None:
    """Scale the student's features by the states of some rows, taken evenly from all."""
    known = [row.states for row in rows if row.states is not None]
    if student.has_features:
        some = known[:: max(1, len(known) // SCALED_BY)]
        student.scale_to(torch.from_numpy(np.concatenate(some).astype("f4")))


def _layers(target: Any, options: Options, count: int) -> list[int]:
    """Return the target's layers to copy; for a drafter to go on from, any of the same number. Raises InvalidRequest
    for a layer that the target lacks."""
    have = target.config.num_hidden_layers
    if options.init is not None:
        return [min(i, have - 1) for i in range(count)]
    if off := [i for i in options.layers if not -have <= i < have]:
        raise InvalidRequest("layers", f"the target has no layer {off[0]}, but {have} from 0 on")
    return [i % have for i in options.layers]


def _fingerprint(options: Options, rows: list[Row], student: Student, identity: Identity) -> str:
    """Hash everything that the weights depend on."""
    digest = hashlib.sha256(
        options.model_dump_json(
            include={"layers", "steps", "minutes", "batch", "rate", "negatives", "seed", "threads"}
        ).encode()
    )
    digest.update(json.dumps([student.has_features, student.head_ids.tolist(), *identity]).encode())
    for tensor in student.weights().values():
        digest.update(tensor.numpy().tobytes())
    for row in rows:
        digest.update(json.dumps([row.digest, row.continuation, row.labels, row.states is None]).encode())
    return digest.hexdigest()


def _card(
    options: Options, identity: Identity, student: Student, material: Material, done: Progress, scores: dict[str, Any]
) -> dict[str, Any]:
    known = sum(row.states is not None for row in material.rows)
    kind = f"KL to the target + {GOLD} cross-entropy" if known == len(material.rows) else "cross-entropy"
    return {
        "embedding": "target",
        "features": student.has_features,
        **identity._asdict(),
        "start": _start(options),
        "data": model_card.about_data(material.rows, material.sources),
        "domains": list(options.domains),
        "head": len(student.head_ids),
        "steps": done.step,
        "batch": options.batch,
        "rate": options.rate,
        "seed": options.seed,
        "minutes": round(done.seconds / 60, 1),
        "loss": {
            "kind": kind if known in (0, len(material.rows)) else f"{kind}, KL where known",
            "last": round(done.loss, 4),
        },
        "held_out": scores,
    }


def _start(options: Options) -> dict[str, Any]:
    if options.init:
        return {"drafter": Path(options.init).name}
    return {"noise": len(options.layers)} if options.scratch else {"layers": list(options.layers)}


def _millions(student: Student) -> str:
    return f"{sum(p.numel() for p in student.parameters()) / 1e6:.1f}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
