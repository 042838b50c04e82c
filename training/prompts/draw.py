"""Draw prompts of five domains for a target to answer: templates filled with topics, reproducible from a seed.

They are broad rather than many: a drafter taught on few kinds of question guesses well on those only. None of the
benchmark's prompts (`bench/prompts.py`) is among them; a test checks this.
"""

import random
import re
from collections.abc import Callable, Iterator

from training.prompts.code_topics import (
    ATTRIBUTES,
    CODE_TASKS,
    CONCEPTS,
    LANGUAGES,
    PATTERNS,
    SHELL,
    SNIPPETS,
)
from training.prompts.templates import TEMPLATES
from training.prompts.topics import (
    ACTIVITIES,
    FEELINGS,
    FOODS,
    MATHWORDS,
    NOUNS,
    PEOPLE,
    PERSON_KINDS,
    PLACES,
    RELATIVES,
    SCIENCE,
    STYLES,
    THINGS,
)

DOMAINS = tuple(TEMPLATES)
Draw = random.Random


def prompts(domain: str, seed: int = 0) -> Iterator[str]:
    """Yield prompts of a domain without end, the same for the same seed; repetitions are rare."""
    draw = random.Random(f"{domain}/{seed}")
    while True:
        templates = list(TEMPLATES[domain])
        draw.shuffle(templates)
        for template in templates:
            yield _filled(template, draw)


def _filled(template: str, draw: Draw) -> str:
    values = {name: _value(name, draw) for name in re.findall(r"{(\w+)}", template)}
    text = template.format(**values)
    return text[0].upper() + text[1:]


def _value(name: str, draw: Draw) -> str:
    if name.startswith("a_noun"):
        noun = draw.choice(NOUNS)
        return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
    return _VALUES[name.rstrip("2")](draw)


def _one_of(options: tuple[str, ...]) -> Callable[[Draw], str]:
    return lambda draw: draw.choice(options)


def _number(low: int, high: int) -> Callable[[Draw], str]:
    return lambda draw: str(draw.randint(low, high))


_VALUES: dict[str, Callable[[Draw], str]] = {
    "language": _one_of(LANGUAGES),
    "task": _one_of(CODE_TASKS),
    "task_capital": lambda draw: "Write something that " + draw.choice(CODE_TASKS),
    "noun": _one_of(NOUNS),
    "noun_title": lambda draw: draw.choice(NOUNS).title().replace(" ", ""),
    "snippet": _one_of(SNIPPETS),
    "concept": _one_of(CONCEPTS),
    "things": _one_of(THINGS),
    "attribute": _one_of(ATTRIBUTES),
    "shell": _one_of(SHELL),
    "pattern": _one_of(PATTERNS),
    "person": _one_of(PEOPLE),
    "a": _number(20, 990),
    "b": _number(2, 19),
    "c": _number(3, 60),
    "d": _number(2, 12),
    "small": _number(2, 9),
    "percent": lambda draw: str(draw.choice((5, 10, 12, 20, 25, 30, 40, 75))),
    "sum": _number(5, 15),
    "product": _number(6, 50),
    "mathword": _one_of(MATHWORDS),
    "feeling": _one_of(FEELINGS),
    "activity": _one_of(ACTIVITIES),
    "relative": _one_of(RELATIVES),
    "person_kind": _one_of(PERSON_KINDS),
    "place": _one_of(PLACES),
    "topic": lambda draw: draw.choice(draw.choice((SCIENCE, ACTIVITIES, THINGS, SCIENCE))),
    "food": _one_of(FOODS),
    "style": _one_of(STYLES),
}
