"""Choose the form of a drafter's weights: that of most expected tokens a second.

A form of fewer bits is read in less time and is right less often. Both are measured once, and the choice is kept.
"""

import json
import logging
import math
import platform
import time
from collections.abc import Sequence as Listed
from functools import partial
from pathlib import Path

import torch

from app.config import Activations, WeightsAs
from app.engine.cpu.equivalence import probe
from app.engine.cpu.fused import FusedForward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import load_guesser, weights_of
from app.engine.text.tokenizer import Tokenizer
from app.engine.weights.fingerprint import digest
from app.engine.weights.model_cache import read_cached, write_cached
from app.engine.weights.rounding import linear_bytes
from app.engine.weights.tensors import Stored
from app.errors import InvalidRequest
from app.logs import STARTING
from app.request import ChatMessage
from app.state import BatchEntry, CachedSequence, Guess, Tree
from app.system import processor

log = logging.getLogger(__name__)
Answers = Listed[list[Guess]]
ACTIVATIONS: Activations = "int8"
FEWEST: WeightsAs = "q4_0"
ROW = 0.1  # of a step, for each row beside the first: 0.07 with int8 rows, 0.2 with float32 (docs/benchmarks.md)
LONGEST = 8  # guesses of a draft
PROMISE, GAIN = 1.1, 1.03  # worth of fewer bits: as if as right, to be tried; as measured, to be taken
ANSWER = 12  # tokens
CHOICES = 16  # likeliest tokens whose chances are looked at
READ = 24  # tokens before the guesses that are timed
LOOKS = 3
PROMPTS = (
    "Write a Python function that reverses a list.",
    "Explain what this does: for i in range(10): print(i * i)",
    "What is 15 percent of 240? Explain.",
    "A train travels 180 km in two hours. How fast is it?",
    "How can I sleep better?",
    "I want to start running. How do I begin?",
    "Write a short story about a lighthouse.",
    "Write a letter to a friend who has moved away.",
    "Why is the sky blue?",
    "How does a vaccine work?",
)


def worth(chance: float, cost: float) -> float:
    """Return the most expected tokens of a round over its time in target steps, drafting and verifying by turns.

    d guesses, each right with the chance a and of the cost c in steps: (1 + a + ... + a^d) / (1 + d (c + ROW)).
    """
    lengths = range(1, LONGEST + 1)
    return max(sum(chance**i for i in range(d + 1)) / (1.0 + d * (cost + ROW)) for d in lengths)


def load_best_form(
    folder: Path, target: Path, target_weights: WeightsAs, *, kv_bytes: int, page_tokens: int, home: Path
) -> ModelGuesser:
    """Load a drafter in the form of most bits that has integer products, or in the one of fewest where that gains.

    A step's time is unknown here: as both read their weights once, a guess costs its bytes over the target's. How much
    less it costs in fewer bits is timed. A guess is right with the chance that the form of most bits gives it, over
    ten answers of that form. Fewer bits that could not gain even if as right are not tried. Raises ModelRefused.
    """
    machine = [platform.machine(), processor(), torch.get_num_threads()]
    load = partial(
        load_guesser, folder, target, kv_bytes=kv_bytes, page_tokens=page_tokens, home=home, activations=ACTIVATIONS
    )
    file = home / "known" / f"form-{digest((folder, target), target=target_weights, machine=machine)}.json"
    if (kept := read_cached(file, _form)) is not None:
        return load(weights=kept)
    weights = weights_of(folder, target)
    most: WeightsAs = "q8_0" if linear_bytes(weights, "q8_0") < linear_bytes(weights, "stored") else "stored"
    found = first = load(weights=most)
    if isinstance(first.model, FusedForward):
        whole = linear_bytes(Stored(target), target_weights)
        cost, least = first.model.weight_bytes / whole, linear_bytes(weights, FEWEST) / whole
        STARTING.info("choosing the form of the weights of %s", folder.name)
        prompts = _prompts(Tokenizer(target), first.max_context - ANSWER)
        followed = answers(first, prompts)
        chance = _mean([guess.confidence for answer in followed for guess in answer])
        if worth(chance, least) >= PROMISE * worth(chance, cost):
            other = load(weights=FEWEST, like=most)
            found = other if _gain(first, other, cost, followed, answers(other, prompts, followed)) >= GAIN else first
    write_cached(file, json.dumps(found.weights))
    return found


def _form(text: str) -> WeightsAs:
    found: WeightsAs = json.loads(text)
    if found not in ("stored", "q8_0", FEWEST):
        raise ValueError(f"it names no form of weights: {found}")
    return found


def _gain(first: ModelGuesser, other: ModelGuesser, cost: float, followed: Answers, theirs: Answers) -> float:
    """Return the worth of the other form over that of the first."""
    pairs = [pair for own, their in zip(followed, theirs, strict=True) for pair in zip(own, their, strict=True)]
    chance, other_chance = _mean([own.confidence for own, _ in pairs]), _mean([chance_of(*pair) for pair in pairs])
    first_s, other_s = _seconds([first, other])
    gain = worth(other_chance, cost * other_s / first_s) / worth(chance, cost)
    log.info(
        "a drafter's guess takes %.2g ms, right with a chance of %.3f; in %s %.2g ms and %.3f: %.2f times the tokens",
        first_s * 1e3, chance, FEWEST, other_s * 1e3, other_chance, gain,
    )  # fmt: skip
    return gain


def answers(guesser: ModelGuesser, prompts: Listed[list[int]], followed: Answers = ()) -> Answers:
    """Return the guesses at each token of an answer to each prompt that there is memory for.

    An answer goes on with the tokens of the followed guesses, or else with those of its own.
    """
    sequences = []
    for i, prompt in enumerate(prompts):
        sequence = CachedSequence(str(i), list(prompt))
        if guesser.try_reserve(_rest(sequence), ANSWER):
            sequences.append(sequence)
    found: list[list[Guess]] = [[] for _ in sequences]
    for place in range(ANSWER if sequences else 0):
        guesses = guesser.guess_one([_rest(sequence) for sequence in sequences], CHOICES)
        for i, (sequence, (guess,)) in enumerate(zip(sequences, guesses, strict=True)):
            found[i].append(guess)
            guesser.cover(sequence, len(sequence.tokens))
            sequence.tokens.append(followed[i][place].token if followed else guess.token)
    for sequence in sequences:
        guesser.release(sequence)
    return found


def chance_of(guess: Guess, other: Guess) -> float:
    """Return the chance that a guess of several choices gives the token of another; 0 if it is none of them."""
    choices = {guess.second: guess.second_confidence, guess.token: guess.confidence, **dict(guess.further)}
    return choices.get(other.token, 0.0)


def _seconds(guessers: Listed[ModelGuesser]) -> list[float]:
    """Time a guess of a chain, of each in turn: what else runs disturbs all alike."""
    best = [math.inf] * len(guessers)
    for _ in range(LOOKS):
        for i, guesser in enumerate(guessers):
            sequence = probe(READ, guesser.model.vocab_size)
            if guesser.try_reserve(_rest(sequence), LONGEST):
                guesser.guess([_rest(sequence)], 1, 0.0)
                guesser.cover(sequence, READ - 1)
                started = time.perf_counter()
                (chain,) = guesser.guess([_rest(sequence)], LONGEST, 0.0)
                best[i] = min(best[i], (time.perf_counter() - started) / len(chain))
            guesser.release(sequence)
    return best


def _rest(sequence: CachedSequence) -> BatchEntry:
    return BatchEntry(sequence, sequence.cached, sequence.tokens[sequence.cached :], Tree(), final=True)


def _prompts(tokenizer: Tokenizer, most: int) -> list[list[int]]:
    try:
        found = [tokenizer.chat([ChatMessage(role="user", content=text)]) for text in PROMPTS]
    except InvalidRequest:  # no chat template, or one that wants more
        found = [tokenizer.encode(text) for text in PROMPTS]
    return [ids[-max(1, most) :] for ids in found if ids]


def _mean(values: Listed[float]) -> float:
    return sum(values) / max(1, len(values))
