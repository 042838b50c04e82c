"""Generate greedy texts with a GPU runner, and read the same texts again in other batches."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.engine.gpu.runner import ChosenRows, DeviceRunner
from app.state import BatchEntry, CachedSequence, Tree


def generate(runner: DeviceRunner, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return `count` greedy token ids after each prompt, all prompts in one batch, without drafts."""
    states = [_read(runner, prompt) for prompt in prompts]
    for _ in range(count):
        for state, answer in zip(states, _step(runner, states, [[]] * len(states)), strict=True):
            state.tokens.append(answer.tokens[0])
    _release(runner, states)
    return [state.tokens[-count:] for state in states]


@dataclass(frozen=True, slots=True)
class Flip:
    """A position where another token than before came out."""

    sequence: int
    position: int  # among the generated
    gap: float  # by which the other token was ahead, in logits


def flips(
    runner: DeviceRunner, prompts: Sequence[list[int]], texts: Sequence[list[int]], drafted: int = 0
) -> list[Flip]:
    """Read the texts again in one batch, with `drafted` of their own tokens as chains; list every other token.

    The texts are of one length, each generated after its prompt.
    """
    states = [_read(runner, prompt) for prompt in prompts]
    found = []
    length = len(texts[0])
    done = 0
    while done < length:
        ahead = min(drafted, length - 1 - done)
        chains = [text[done : done + ahead] for text in texts]
        for i, (state, answer) in enumerate(zip(states, _step(runner, states, chains), strict=True)):
            expected = texts[i][done : done + ahead + 1]
            for j, (chosen, token) in enumerate(zip(answer.tokens, expected, strict=True)):
                if chosen != token:
                    row = answer.rows[j].float()
                    found.append(Flip(i, done + j, float(row[chosen] - row[token])))
            state.tokens += expected
        done += ahead + 1
    _release(runner, states)
    return found


def chain(tokens: Sequence[int]) -> Tree:
    """Return a tree in which each token is the child of the one before."""
    return Tree(list(tokens), list(range(len(tokens))), [1.0] * len(tokens), [("bench",)] * len(tokens))


def reserve(runner: DeviceRunner, work: BatchEntry) -> BatchEntry:
    """Reserve the batch entry's pages and return it. Raises MemoryError."""
    if not runner.try_reserve(work):
        raise MemoryError("the cache of this measurement was made too small")
    return work


def _read(runner: DeviceRunner, prompt: list[int]) -> CachedSequence:
    """Return a sequence whose cache holds all of the prompt but its last token."""
    state = CachedSequence("bench", list(prompt))
    if len(prompt) > 1:
        work = reserve(runner, BatchEntry(state, 0, state.tokens[:-1], Tree(), final=False))
        runner.forward([work])
        runner.accept(work, [])
    return state


def _step(runner: DeviceRunner, states: Sequence[CachedSequence], chains: Sequence[list[int]]) -> list[ChosenRows]:
    """Run one step of all sequences, each with a chain below its last token that is accepted whole."""
    works = [
        reserve(runner, BatchEntry(state, len(state.tokens) - 1, state.tokens[-1:], chain(tokens), final=True))
        for state, tokens in zip(states, chains, strict=True)
    ]
    answers = [answer for answer in runner.forward(works) if answer is not None]
    for work in works:
        runner.accept(work, list(range(1, len(work.tree) + 1)))
    return answers


def _release(runner: DeviceRunner, states: Sequence[CachedSequence]) -> None:
    for state in states:
        runner.release(state)
