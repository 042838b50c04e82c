"""Test the comparison with other engines, over engines that answer at once: who is asked what, and the figures."""

from typing import Any

import pytest

from bench.peers.engines import DRAFTED, NAMES, USUAL
from bench.peers.long_prompts import long_prompt, openings
from bench.peers.run import busy_cores, chosen, compare, first_tokens, needs, parse_args, rates
from tests.fakes import Characters


class Answering:
    """Answers in so many seconds a token."""

    def __init__(self, name: str, seconds: float, batches: bool = True, may_end: bool = False, short: int = 0) -> None:
        self.name, self.batches, self.may_end = name, batches, may_end
        self.asked: list[list[list[int]]] = []
        self._seconds, self._short = seconds, short

    def ask(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        self.asked.append(prompts)
        tokens = [[1] * (max_tokens - self._short)] * len(prompts)
        return {"seconds": self._seconds * sum(map(len, tokens)), "tokens": tokens}


def test_every_engine_gets_every_prompt_once_and_all_get_the_same() -> None:
    one, other = Answering("paceline", 0.1), Answering("llama.cpp", 0.2)
    found = rates([one, other], 3, parse_args(["--repeats", "4", "--max-tokens", "8"]), Characters())
    assert one.asked == other.asked and len(one.asked) == 5, "one job to warm up"
    assert len({tuple(prompt) for prompts in one.asked for prompt in prompts}) == 15
    assert found["tokens_per_s"] == {"paceline": 10.0, "llama.cpp": 5.0}
    assert found["ratios"]["paceline / llama.cpp"]["mean"] == pytest.approx(2.0)


def test_an_engine_that_batches_nothing_is_left_out_of_several_at_once() -> None:
    lone = Answering("transformers", 0.1, batches=False)
    args = parse_args(["--repeats", "1"])
    assert rates([lone], 8, args, Characters())["tokens_per_s"] == {} and not lone.asked
    assert rates([lone], 1, args, Characters())["tokens_per_s"] == {"transformers": 10.0}


def test_a_rate_is_of_the_tokens_that_came() -> None:
    short = Answering("paceline deployment", 0.1, may_end=True, short=3)
    assert compare([short], lambda _: [[1]], 2, 8) == {short.name: pytest.approx([10.0, 10.0])}
    with pytest.raises(AssertionError, match="paceline"):
        compare([Answering("paceline", 0.1, short=3)], lambda _: [[1]], 2, 8)


def test_first_tokens_are_of_prompts_that_no_prefix_cache_knows() -> None:
    ours, theirs = Answering("paceline int8", 0.1), Answering("llama.cpp", 0.3)
    drafting = Answering("paceline int8, speculating", 0.1)
    words = openings(Characters())[:4]
    found = first_tokens([ours, theirs, drafting], words, 100, Characters())
    prompts = [prompt for (prompt,) in ours.asked]
    assert {len(prompt) for prompt in prompts} == {100} and len({prompt[0] for prompt in prompts}) == 4
    assert theirs.asked == ours.asked and not drafting.asked
    assert found["seconds"] == {"paceline int8": 0.1, "llama.cpp": 0.3}
    assert found["ratios"]["paceline int8 / llama.cpp"]["mean"] == pytest.approx(3.0)


def test_a_long_prompt_is_the_same_whenever_it_is_made_and_the_same_as_text() -> None:
    tokenizer = Characters()
    ids = long_prompt(tokenizer, "Write", 3000)
    assert ids == long_prompt(tokenizer, "Write", 3000) != long_prompt(tokenizer, "What", 3000)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids and len(ids) == 3000


def test_peers_without_a_python_are_left_out_and_deployments_are_asked_for_by_name() -> None:
    assert chosen(parse_args([])) == [name for name in USUAL if "llama" not in name and "vllm" not in name]
    args = parse_args(["--llama-python", "python", "--engines", "llama.cpp", "vllm-cpu", "paceline deployment"])
    assert chosen(args) == ["llama.cpp", "paceline deployment"]
    assert DRAFTED not in chosen(parse_args(["--llama-python", "python"]))
    assert DRAFTED in chosen(parse_args(["--llama-python", "python", "--draft", "model.gguf"]))
    assert set(USUAL) < set(NAMES)
    with pytest.raises(SystemExit):
        parse_args(["--engines", "llama"])


def test_engines_have_room_for_the_longest_prompt_and_the_most_at_once() -> None:
    assert needs(parse_args(["--prompt-tokens", "256", "4096"])).context == 4352
    wish = needs(parse_args(["--concurrency", "1", "16", "--max-tokens", "64"]))
    assert (wish.at_once, wish.context) == (16, 256)


def test_a_machine_has_no_more_busy_cores_than_cores() -> None:
    assert 0.0 <= busy_cores(0.05) <= 1024
