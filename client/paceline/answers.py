"""Hold what a server answers."""

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Figures:
    """Say what a text took; `drafted` and `accepted` count draft tokens, `rounds` passes of the target."""

    prompt_tokens: int
    first_token_s: float | None
    total_s: float
    tokens_per_s: float | None  # behind the first token
    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    tokens: tuple[int, ...]  # their ids
    finish_reason: str  # stop, length or cancelled
    figures: Figures
    result: dict[str, Any]  # the server's whole object, with logprobs and calls of tools

    @classmethod
    def of(cls, result: dict[str, Any]) -> Self:
        timing, drafts, tokens = result["timing"], result["speculation"], tuple(result["token_ids"])
        first_s, total_s = timing["ttft_s"], timing["total_s"]
        is_timed = first_s is not None and total_s > first_s and len(tokens) > 1
        figures = Figures(
            prompt_tokens=result["usage"]["prompt_tokens"],
            first_token_s=first_s,
            total_s=total_s,
            tokens_per_s=(len(tokens) - 1) / (total_s - first_s) if is_timed else None,
            rounds=drafts["rounds"],
            drafted=drafts["drafted"],
            accepted=drafts["accepted"],
        )
        return cls(result["text"], tokens, result["finish_reason"], figures, result)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Hold one prompt's answers with and without speculation."""

    speculating: Answer
    plain: Answer

    @property
    def same(self) -> bool:
        return self.speculating.tokens == self.plain.tokens

    @property
    def speedup(self) -> float | None:
        """Divide the tokens a second with speculation by those without; None for texts too short to tell."""
        with_, without = self.speculating.figures.tokens_per_s, self.plain.figures.tokens_per_s
        return None if with_ is None or without is None else with_ / without

    def __str__(self) -> str:
        text = "the same text" if self.same else "ANOTHER TEXT"
        with_, without = self.speculating.figures, self.plain.figures
        if self.speedup is None:
            return f"{text}; too short to be timed"
        drafts = f"{with_.accepted} of {with_.drafted} draft tokens right"
        return (
            f"{with_.tokens_per_s:.1f} tokens/s with speculation ({drafts}), {without.tokens_per_s:.1f} without: "
            f"{self.speedup:.2f} times as fast, {text}"
        )
