"""Make prompts of a length: the benchmark's own in some order, as text without a chat template."""

import random
from itertools import count

from app.engine.text.tokenizer import Tokenizer
from bench.prompts import PROMPTS

TEXTS = [text for group in zip(*PROMPTS.values(), strict=True) for text in group]


def openings(tokenizer: Tokenizer) -> list[str]:
    """Return words of the prompts, each of which begins with another token, so that prompts that begin with them
    have nothing in common that a prefix cache could keep."""
    words = sorted({word for text in TEXTS for word in text.split() if word.isalpha()})
    return list({tokenizer.encode(word)[0]: word for word in reversed(words)}.values())


def long_prompt(tokenizer: Tokenizer, opening: str, tokens: int) -> list[int]:
    """Return the ids of a text of so many tokens, the same for the same opening; as text, it has these ids again."""
    for draw in count():
        shuffled = random.Random(f"{opening} {draw}")
        text, ids = f"{opening}:", list[int]()
        while len(ids) < tokens:
            text = " ".join([text, *shuffled.sample(TEXTS, len(TEXTS))])
            ids = tokenizer.encode(text)
        if tokenizer.encode(tokenizer.decode(ids[:tokens])) == ids[:tokens]:  # a word cut in two may have others
            return ids[:tokens]
    raise AssertionError("unreachable")
