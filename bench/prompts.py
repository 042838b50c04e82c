"""Hold prompts of five domains, written for the benchmarks, and read others from a file.

No two of ours are alike, so none helps with the next.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Prompts = Mapping[str, tuple[str, ...]]  # by domain


def add_prompts_file(parser: argparse.ArgumentParser) -> None:
    """Add the option that replaces our prompts; it gives `Prompts`."""
    parser.add_argument(
        "--prompts-file",
        dest="texts",
        metavar="FILE",
        type=read_prompts,
        default=PROMPTS,
        help="JSON lines of Spec-Bench's form, turns and category, whose first turns are asked (default: our prompts)",
    )


def read_prompts(path: str) -> dict[str, tuple[str, ...]]:
    """Read JSON lines with `turns`, a list whose first text is asked, and perhaps `category`: the domain.

    Without one the file's name is the domain. Raises argparse.ArgumentTypeError, with the line.
    """
    found: dict[str, list[str]] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
            domain, text = row.get("category", Path(path).stem), row["turns"][0]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise argparse.ArgumentTypeError(f"{path}, line {number}: no object with turns: {error!r}") from error
        if not (isinstance(domain, str) and isinstance(text, str) and text.strip()):
            raise argparse.ArgumentTypeError(f"{path}, line {number}: category and first turn are texts")
        found.setdefault(domain, []).append(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{path} holds no prompts")
    return {domain: tuple(texts) for domain, texts in found.items()}


PROMPTS: Prompts = {
    "code": (
        "Write a Python function that checks whether a string is a palindrome.",
        "Write a Python class for a stack with push, pop and peek.",
        "Write a SQL query that lists the ten customers with the most orders.",
        "Write a Python function that merges two sorted lists.",
        "Write a JavaScript function that removes duplicates from an array.",
        "Write a Python script that counts the words in a text file.",
        "Write a Python function that computes the greatest common divisor of two numbers.",
        "Write an HTML page with a form that asks for a name and an email address.",
        "Write a Python function that converts a temperature from Celsius to Fahrenheit.",
        "Write a bash script that renames all .txt files in a folder to .md.",
        "Write a Python function that reverses the words of a sentence.",
        "Write a Java class for a bank account with deposit and withdraw.",
        "Write a Python generator that yields the Fibonacci numbers.",
        "Write a C function that swaps two integers through pointers.",
        "Write a Python function that reads a CSV file and sums one column.",
        "Write a SQL statement that creates a table of books and authors.",
        "Write a Python decorator that measures how long a function takes.",
        "Write a regular expression that matches dates like 2024-05-17, and explain it.",
        "Write a JavaScript function that waits for a number of seconds.",
        "Write a Python unit test for a function that adds two numbers.",
    ),
    "math": (
        "A shirt costs 40 dollars and is reduced by 15 percent. What does it cost now? Explain step by step.",
        "Solve 3x + 7 = 25 and show each step.",
        "A train travels 180 km in 2.5 hours. What is its average speed?",
        "What is the area of a triangle with base 12 and height 9? Explain.",
        "Find the sum of the first 20 positive integers and explain the method.",
        "If 5 workers build a wall in 12 days, how long do 8 workers take?",
        "Compute 15 percent of 240 and explain how.",
        "A rectangle has a perimeter of 36 and a length of 10. What is its width?",
        "Factor the polynomial x^2 - 5x + 6 step by step.",
        "Convert the fraction 7/8 to a decimal and a percentage.",
        "A recipe for 4 people needs 300 g of flour. How much is needed for 10 people?",
        "What is the probability of rolling two sixes with two dice? Explain.",
        "Solve the system x + y = 10 and x - y = 4.",
        "A circle has a radius of 5 cm. What are its circumference and area?",
        "How many seconds are there in a week? Show the calculation.",
        "Find the average of 12, 15, 21 and 32.",
        "A loan of 2000 dollars has 5 percent simple interest. How much is owed after 3 years?",
        "What is the slope of the line through (1, 2) and (4, 11)?",
        "Simplify the expression 3(x + 4) - 2(x - 1) step by step.",
        "A tank holds 600 litres and loses 25 litres an hour. When is it empty?",
    ),
    "chat": (
        "I feel nervous about a job interview tomorrow. Do you have some advice?",
        "Can you suggest a birthday present for my ten-year-old nephew who likes space?",
        "What should I cook tonight with rice, eggs and spinach?",
        "My neighbour plays loud music at night. How should I talk to her?",
        "I want to start running. How do I begin?",
        "Give me some ideas for a rainy Sunday with two small children.",
        "How can I sleep better?",
        "I have to give a speech at a wedding. How should I start?",
        "Which plants survive in a dark flat?",
        "Help me plan a three-day trip to a small town by the sea.",
        "I have just moved to a new city and know nobody. What should I do?",
        "Can you help me plan a quiet weekend at home?",
        "My cat keeps waking me up at night. Any ideas?",
        "I cannot fall asleep before midnight. What could help?",
        "My grandmother turns ninety. How can we surprise her?",
        "I always lose at chess against my brother. What can I practise?",
        "Please recommend a way to learn a few words of Italian every day.",
        "I forgot my friend's birthday. What can I say?",
        "Do you think I should bring a gift to a dinner invitation?",
        "Which houseplants survive somebody who forgets to water them?",
    ),
    "prose": (
        "Write a short story about a lighthouse keeper who finds a message in a bottle.",
        "Describe an old library at night.",
        "Write a letter from a soldier to his sister.",
        "Write a fairy tale about a fox who wanted to fly.",
        "Describe a market in a desert town in the early morning.",
        "Write the opening of a mystery novel set on a train.",
        "Write a poem about the first snow of the year.",
        "Tell the story of a clockmaker who could stop time.",
        "Describe a storm from the point of view of a small boat.",
        "Write a dialogue between a mountain and a river.",
        "Describe the last day of summer in a small village.",
        "Write a story about a robot who learns to paint.",
        "Write a diary entry of a sailor in a calm sea.",
        "Tell a legend about how the mountains got their snow.",
        "Describe a kitchen where three generations cook together.",
        "Write a short story about a lost key.",
        "Write a poem about an empty railway station.",
        "Describe a city seen from a balloon.",
        "Write a ghost story that takes place in a school.",
        "Tell the story of a gardener and a stubborn tree.",
    ),
    "qa": (
        "What causes the tides?",
        "Why is the sky blue?",
        "What is the difference between a virus and a bacterium?",
        "Who was Marie Curie and what is she known for?",
        "How does a refrigerator work?",
        "What is inflation in economics?",
        "Why do leaves change their colour in autumn?",
        "What was the Silk Road?",
        "How do vaccines work?",
        "What is photosynthesis?",
        "How does a compass work?",
        "What does the liver do?",
        "Why do we have leap years?",
        "What was the Renaissance?",
        "How are rainbows formed?",
        "What is the difference between weather and climate?",
        "Who wrote Don Quixote and what is it about?",
        "How does a bicycle stay upright?",
        "What is a black hole?",
        "Why is sea water salty?",
    ),
}
