"""Draw prompts of five domains for a target to answer: templates filled with topics, reproducible from a seed.

Templates and topics are data, in `templates.toml` and `topics.toml`. They are broad rather than many: a drafter taught
on few kinds of question guesses well on those only. No prompt of the benchmark (`bench/prompts.py`) is among them.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
TEMPLATES: dict[str, list[str]] = tomllib.loads((FOLDER / "templates.toml").read_text(encoding="utf-8"))
TOPICS: dict[str, list[str]] = tomllib.loads((FOLDER / "topics.toml").read_text(encoding="utf-8"))
DOMAINS = tuple(TEMPLATES)
NUMBERS = {  # least and greatest
    "a": (20, 990), "b": (2, 19), "c": (3, 60), "d": (2, 12), "small": (2, 9), "sum": (5, 15), "product": (6, 50)
}  # fmt: skip
PERCENTS = (5, 10, 12, 20, 25, 30, 40, 75)
TOPIC_KINDS = ("science", "activity", "things", "science")


def prompts(domain: str, seed: int = 0) -> Iterator[str]:
    """Yield prompts of a domain without end, the same for the same seed; repetitions are rare."""
    draw = random.Random(f"{domain}/{seed}")
    while True:
        templates = list(TEMPLATES[domain])
        draw.shuffle(templates)
        for template in templates:
            yield _filled(template, draw)


def _filled(template: str, draw: random.Random) -> str:
    values = {name: _value(name, draw) for name in re.findall(r"{(\w+)}", template)}
    text = template.format(**values)
    return text[0].upper() + text[1:]


def _value(name: str, draw: random.Random) -> str:
    """Draw what a name in a template stands for; a 2 behind it asks for another draw."""
    match name.rstrip("2"):
        case "a_noun":
            noun = draw.choice(TOPICS["noun"])
            return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
        case "noun_title":
            return draw.choice(TOPICS["noun"]).title().replace(" ", "")
        case "task_capital":
            return "Write something that " + draw.choice(TOPICS["task"])
        case "topic":
            return draw.choice(TOPICS[draw.choice(TOPIC_KINDS)])
        case "percent":
            return str(draw.choice(PERCENTS))
        case number if number in NUMBERS:
            return str(draw.randint(*NUMBERS[number]))
        case kind:
            return draw.choice(TOPICS[kind])
