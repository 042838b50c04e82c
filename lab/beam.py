"""`./paceline lab beam`: tell how many tokens a round trees over recordings have, and which choices are right."""

import sys
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import NamedTuple

from bench.help import parser as parser_of
from lab.simulate.log import CHOICES, DEPTH, DrafterLog, Log, Text, choices_of

NODES = 16  # of a tree, at most: the likeliest
ALL = "all domains"


class Shape(NamedTuple):
    """A tree of DEPTH levels, each grown from the likeliest nodes of the one before."""

    choices: int  # of each guess
    paths: int  # nodes of a level that are grown from


SHAPES = {"chain": Shape(1, 1), "chain and leaves": Shape(2, 1), "beam of 2": Shape(CHOICES, 2)}


def main(argv: Listed[str] | None = None) -> int:
    parser = parser_of("lab beam", __doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a recording")
    for file in parser.parse_args(argv).files:
        print(file, *lines_of(Log.read(file)), sep="\n")
    return 0


def lines_of(log: Log) -> list[str]:
    """Return a line for each drafter and domain."""
    lines = []
    for name, own in log.drafters.items():
        for domain in dict.fromkeys([*(text.domain for text in log.texts), ALL]):
            worth = ", ".join(f"{shape} {tokens_a_round(log, own, SHAPES[shape], domain):.2f}" for shape in SHAPES)
            right = ", ".join(f"{chance:.2f}" for chance in right_choices(log, own, domain))
            lines.append(f"{name}, {domain}: tokens a round: {worth}; right where earlier choices are wrong: {right}")
    return lines


def tokens_a_round(log: Log, own: DrafterLog, shape: Shape, domain: str = ALL) -> float:
    """Count the tokens that a drafter's trees of a shape bring, the target's own among them."""
    tokens, rounds = 0, 0
    for number, text in _texts(log, domain):
        at = 1
        while at < len(text.tokens):
            at += 1 + _right(own, number, text.tokens, at, shape)
            rounds += 1
        tokens += len(text.tokens) - 1
    return tokens / max(1, rounds)


def right_choices(log: Log, own: DrafterLog, domain: str = ALL) -> list[float]:
    """Return how often the first, second, ... choice behind a text's tokens is right where those before are wrong."""
    found = [[0, 0] for _ in range(CHOICES)]
    for number, text in _texts(log, domain):
        for token, chain in zip(text.tokens, own.guesses[number], strict=True):
            for counts, (choice, _) in zip(found, choices_of(chain[0]) if chain else (), strict=False):
                counts[0] += choice == token
                counts[1] += 1
                if choice == token:
                    break
    return [right / count for right, count in found if count]


def _texts(log: Log, domain: str) -> list[tuple[int, Text]]:
    return [(number, text) for number, text in enumerate(log.texts) if domain in (ALL, text.domain)]


def _right(own: DrafterLog, number: int, tokens: tuple[int, ...], at: int, shape: Shape) -> int:
    """Count the tokens that a tree behind the first `at` ones of a text has right."""
    opened: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    nodes = []
    for _ in range(DEPTH):
        level = []
        for survival, path in opened:
            for guess in own.after(number, tokens, at, path)[:1]:
                level += [(survival * sure, (*path, token)) for token, sure in choices_of(guess)[: shape.choices]]
        opened = sorted(level, reverse=True)[: shape.paths]
        nodes += level
    kept = {path for _, path in sorted(nodes, key=lambda node: (-node[0], len(node[1])))[:NODES]}
    return next((depth for depth in range(DEPTH) if tokens[at : at + depth + 1] not in kept), DEPTH)


if __name__ == "__main__":
    sys.exit(main())
