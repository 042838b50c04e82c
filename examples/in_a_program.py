"""Generate texts in a program: python examples/in_a_program.py [URL]   (pip install . in a clone gives `paceline`)"""

import sys

from paceline import LLM

# Without a URL a server of this program's own is started; it ends with the block.
with LLM(url=sys.argv[1]) if len(sys.argv) > 1 else LLM() as llm:
    for answer in llm.generate(["Name three colours.", "Name three birds."], max_tokens=24, temperature=0.8, seed=1):
        print(f"{answer.text!r}: {answer.figures.accepted} of {len(answer.tokens)} tokens were drafted")
    for piece in llm.stream("Write a Python class for a stack.", max_tokens=48):
        print(piece, end="", flush=True)
    print(f"\n{llm.compare('Why is the sky blue?', max_tokens=48)}")
