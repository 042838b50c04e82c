"""Generate texts with Paceline in a program: `LLM`. It needs nothing but the standard library."""

from paceline.answers import Answer, Comparison, Figures
from paceline.errors import Error
from paceline.llm import LLM, Stream

__all__ = ["LLM", "Answer", "Comparison", "Error", "Figures", "Stream"]
