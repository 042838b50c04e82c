"""Prompts of five domains for a target to answer: templates over topics, made again from a seed.

Broad rather than many: a drafter taught on few kinds of question guesses well on those only. None of the benchmark's
prompts (`bench/prompts.py`) is among them; a test holds this.
"""

import random
import re
from collections.abc import Callable, Iterator

from training.topics import (
    ACTIVITIES,
    CODE_TASKS,
    FEELINGS,
    LANGUAGES,
    NOUNS,
    PEOPLE,
    PLACES,
    SCIENCE,
    SNIPPETS,
    STYLES,
    THINGS,
)

DOMAINS = ("code", "math", "chat", "prose", "qa")
Draw = random.Random

CODE = (
    "Write a {language} function that {task}.",
    "Write a {language} program that {task}, and explain how it works.",
    "How do I write {language} code that {task}?",
    "{task_capital} in {language}.",
    "Show me a short {language} example that {task}.",
    "Implement a {language} class for a {noun} with a few useful methods.",
    "Write unit tests for a {language} function that {task}.",
    "I need a {language} script that {task}. Add comments.",
    "What does this code do?\n\n{snippet}",
    "Find the bug in this code, if there is one, and fix it:\n\n{snippet}",
    "Rewrite this code so that it is easier to read:\n\n{snippet}",
    "Translate this code to {language}:\n\n{snippet}",
    "Explain the difference between {concept} and {concept2} in programming, with an example.",
    "Write a SQL query over a table of {things} that counts them by {attribute}.",
    "Write a SQL statement that creates a table for {things}.",
    "Write an HTML page about {things} with a heading and a list.",
    "Write CSS that styles a table of {things}.",
    "Write a bash command that {shell}.",
    "Write a regular expression that matches {pattern}, and explain it.",
    "Write a JSON document that describes a {noun}.",
)
CONCEPTS = (
    "a list",
    "a tuple",
    "a dictionary",
    "a set",
    "recursion",
    "iteration",
    "a class",
    "an object",
    "an interface",
    "a thread",
    "a process",
    "a queue",
    "a stack",
    "a pointer",
    "a reference",
    "an exception",
    "a generator",
    "a decorator",
    "a closure",
    "inheritance",
    "composition",
    "a compiler",
    "an interpreter",
    "a GET request",
    "a POST request",
)
ATTRIBUTES = ("year", "country", "colour", "owner", "category", "price range", "city", "status", "month", "size")
SHELL = (
    "finds all files larger than 100 MB",
    "counts the lines of every Python file in a folder",
    "shows which process uses port 8080",
    "deletes empty directories",
    "replaces a word in many files",
    "packs a folder into an archive",
    "lists the ten largest files",
    "watches a log file for errors",
    "downloads a file and checks its hash",
    "sorts a file by its second column",
)
PATTERNS = (
    "email addresses",
    "phone numbers",
    "IP addresses",
    "hexadecimal colours",
    "postal codes",
    "times like 23:59",
    "URLs",
    "words that begin with a capital letter",
    "numbers with decimals",
    "quoted strings",
    "HTML tags",
    "file names that end in .csv",
)

MATH = (
    "{person} has {a} {things} and gives {b} of them away. How many are left? Explain.",
    "A {noun} costs {a} dollars. How much do {b} of them cost with a {percent} percent discount?",
    "A car drives {a} km in {b} hours. How fast is it on average?",
    "Solve {b}x + {c} = {a} for x, step by step.",
    "Solve {b}x - {c} = {a}. Show your work.",
    "What is {percent} percent of {a}?",
    "What is {a} plus {c}, and how do you work it out?",
    "Calculate {a} times {b} step by step.",
    "Divide {a} by {b} and give the remainder.",
    "A rectangle is {b} cm wide and {c} cm long. Find its area and its perimeter.",
    "What is the volume of a box of {b} by {c} by {d} centimetres?",
    "A circle has a diameter of {c} metres. What is its circumference?",
    "Find the mean and the median of {a}, {b}, {c}, {d} and {percent}.",
    "{person} saves {b} dollars a week. How long until there are {a} dollars?",
    "If {b} machines make {a} {things} in {d} hours, how many do {c} machines make in the same time?",
    "Convert {a} minutes to hours and minutes.",
    "Convert {b}/{c} to a percentage.",
    "Expand (x + {b})(x - {d}) and simplify.",
    "Factor x^2 + {sum}x + {product}.",
    "What is the derivative of {b}x^3 + {c}x - {d}? Explain each step.",
    "What is the integral of {b}x^2 + {d}?",
    "A bag holds {b} red and {c} blue balls. What is the probability of drawing a red one?",
    "Is {a} a prime number? Explain how you know.",
    "Find the greatest common divisor of {a} and {b}.",
    "{person} is {b} years old and {person2} is {d} years older. How old are they together?",
    "A recipe for {d} people needs {a} g of sugar. How much do {c} people need?",
    "A loan of {a} dollars has {d} percent interest a year. What is owed after {b} years?",
    "A triangle has sides of {b}, {c} and {d}. Is it a right triangle?",
    "Simplify {b}(x + {d}) + {c}(x - 2).",
    "Explain what a {mathword} is, with an example.",
    "How do I compute a {mathword}? Show an example with numbers.",
    "Round {a}.{b}{c} to one decimal and explain the rule.",
    "Write {a} in binary and explain how.",
    "What is {b} to the power of {small}?",
    "A train leaves at {small} o'clock and travels {a} km at {c} km/h. When does it arrive?",
)
MATHWORDS = (
    "fraction",
    "prime number",
    "derivative",
    "logarithm",
    "matrix",
    "standard deviation",
    "square root",
    "percentage",
    "ratio",
    "polynomial",
    "vector",
    "hypotenuse",
    "linear equation",
    "probability",
    "geometric series",
    "factorial",
    "median",
    "parabola",
)

CHAT = (
    "I feel {feeling} about {activity}. What should I do?",
    "Can you give me some advice on {activity}?",
    "I want to get better at {activity}. Where do I start?",
    "My {relative} is {feeling} because of {activity}. How can I help?",
    "What is a good gift for a {person_kind} who likes {things}?",
    "Make me a plan for a weekend in {place}.",
    "Recommend something to read about {topic}.",
    "Help me write a message to my {relative} about {activity}.",
    "What should I pack for a trip to {place}?",
    "I have {small} hours free today. Any ideas around {topic}?",
    "Is it a good idea to start {activity} at my age?",
    "My {relative} and I disagree about {activity}. How do we talk about it?",
    "Give me {small} tips for {activity}.",
    "How do I stay motivated with {activity}?",
    "What are the pros and cons of {activity}?",
    "Hello! Can you help me with {activity}?",
    "What would you cook with {food}?",
    "I am {feeling} today. Tell me something nice about {topic}.",
    "Make a checklist for {activity}.",
    "Write a short email that invites people to {activity}.",
    "Let us play a game about {things}. You begin.",
    "I am a {person_kind} and need help with {activity}. What do you suggest?",
    "How much time should I spend on {activity} each week?",
    "What do you think about {topic}?",
)
RELATIVES = (
    "sister",
    "brother",
    "friend",
    "boss",
    "mother",
    "father",
    "neighbour",
    "colleague",
    "daughter",
    "son",
    "teacher",
    "roommate",
)
PERSON_KINDS = (
    "student",
    "retired teacher",
    "nurse",
    "teenager",
    "new parent",
    "gardener",
    "musician",
    "programmer",
    "farmer",
    "photographer",
)
FOODS = (
    "potatoes, onions and cheese",
    "chicken and lemon",
    "lentils and carrots",
    "pasta and tomatoes",
    "tofu, broccoli and rice",
    "bread and apples",
    "beans, corn and peppers",
    "salmon and dill",
    "oats and bananas",
    "mushrooms and cream",
)

PROSE = (
    "Write a short story about {a_noun} and {a_noun2}.",
    "Write a {style} about {topic}.",
    "Describe {place} at dawn.",
    "Tell a story that begins with: The {noun} had never seen {a_noun2}.",
    "Write a poem about {topic}.",
    "Write a dialogue between {a_noun} and {a_noun2}.",
    "Write an essay about the importance of {topic}.",
    "Describe a day in the life of {a_noun} in {place}.",
    "Write the opening paragraph of a novel set in {place}.",
    "Write a letter from {person} to {person2} about {activity}.",
    "Write a fable in which {a_noun} learns about {topic}.",
    "Write a blog post about {activity}.",
    "Write a product description for {a_noun}.",
    "Summarise the history of {topic} in two paragraphs.",
    "Write a speech about {topic} for a school.",
    "Write a review of a book about {things}.",
    "Write a news report about {things} found in {place}.",
    "Write a diary entry of {a_noun} who is {feeling}.",
    "Write a children's story about {things} and {topic}.",
    "Compare {topic} with {topic2} in a few paragraphs.",
    "Write a scene in which {person} loses {a_noun}.",
    "Describe the smell, the sound and the light of {place}.",
)

QA = (
    "What is {topic}, in short?",
    "Explain {topic} in simple words.",
    "Why is {topic} important?",
    "How does {topic} work?",
    "Who discovered {topic}?",
    "What is the difference between {topic} and {topic2}?",
    "Give me {small} facts about {place}.",
    "What are the main causes of {topic}?",
    "List the advantages and disadvantages of {topic}.",
    "When was {topic} first used?",
    "What is {place} known for?",
    "What are {things} made of?",
    "How are {things} made?",
    "Where do {things} come from?",
    "What happens if there are no {things}?",
    "How did {topic} change the world?",
    "Is it true that {things} are good for you?",
    "Name {small} examples of {topic}.",
    "What are common mistakes with {topic}?",
    "Describe the steps of {topic}.",
    "Which instruments are used to study {topic}?",
    "What do scientists still not know about {topic}?",
    "How is {topic} taught in schools?",
    "What is the capital of the country that {place} lies in?",
)
TEMPLATES = {"code": CODE, "math": MATH, "chat": CHAT, "prose": PROSE, "qa": QA}


def prompts(domain: str, seed: int = 0) -> Iterator[str]:
    """Prompts of a domain without end, no two alike for a long time; the same for the same seed."""
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
