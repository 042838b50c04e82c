"""Test the choice of tokens in a worker of vLLM: the same as the verifier's own, by values that can be sent."""

from collections.abc import Sequence as Listed

import numpy as np
import pytest
import torch

from app.engine.cpu.runner import CPURows
from app.engine.vllm.choosing import RowRule, WalkedRows, choose, score
from app.errors import GenerationFailed
from app.request import Sampling
from app.stages.verify import verify
from app.state import CHAIN, BatchEntry, CachedSequence, Tree

VOCAB, WIDTH = 61, 5
HISTORY = [7, 9, 9, 30]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.8, seed=3),
    Sampling(temperature=0.7, seed=4, frequency_penalty=0.5, repetition_penalty=1.3),
    Sampling(seed=5, logit_bias={11: 4.0}, allowed_token_ids=tuple(range(3, 40))),
]


def even_places(history: Listed[int]) -> np.ndarray | None:
    """Allow even tokens, then odd ones, in turn."""
    return np.arange(VOCAB) % 2 == len(history) % 2


def rows(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return 3.0 * torch.randn(count, VOCAB), torch.randn(count, WIDTH)


def entry(drafts: list[int], sampling: Sampling, mask=None, logprobs: int | None = None) -> BatchEntry:
    tree = Tree(drafts, CHAIN[: len(drafts)], [0.9] * len(drafts), [("a",)] * len(drafts))
    sequence = CachedSequence("r", HISTORY, sampling, logprobs=logprobs)
    return BatchEntry(sequence, len(HISTORY) - 1, HISTORY[-1:], tree, final=True, eos_ids=(2,), mask=mask)


def right(count: int, sampling: Sampling, mask, logits: torch.Tensor) -> list[int]:
    """Return drafts of which the first `count` are the target's own."""
    drafts: list[int] = []
    for _ in range(count):
        work = entry(drafts, sampling, mask)
        (verdict,) = verify([work], [CPURows(logits[: len(drafts) + 1], logits.argmax(-1).tolist())])
        drafts = verdict.tokens
    return drafts


@pytest.mark.parametrize("mask", [None, even_places], ids=["free", "masked"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("good", [0, 2, 4])
def test_a_worker_chooses_what_the_verifier_would(good: int, sampling: Sampling, mask) -> None:
    logits, states = rows(5)
    drafts = [*right(good, sampling, mask, logits), *[1] * (4 - good)]
    work = entry(drafts, sampling, mask, logprobs=2)
    (expected,) = verify([work], [CPURows(logits, logits.argmax(-1).tolist(), states.numpy())])
    assert len(expected.tokens) >= good
    chosen = choose(RowRule.of(work, drafts), HISTORY, drafts, logits, states)
    assert chosen == expected
    assert verify([work], [WalkedRows(chosen)]) == [expected], "the verifier walks the same way again"


def test_masks_end_where_a_draft_is_forbidden_and_where_nothing_can_follow() -> None:
    logits, states = rows(4)
    assert len(RowRule.of(entry([1, 1, 1], Sampling(), even_places), [1, 1, 1]).masks or ()) == 1

    def ends(history: Listed[int]) -> np.ndarray | None:
        if len(history) > len(HISTORY):
            raise GenerationFailed("the schema cannot go on")
        return None

    first = int(logits[0].argmax())
    work = entry([first], Sampling(), ends)
    chosen = choose(RowRule.of(work, [first]), HISTORY, [first], logits[:2], states[:2])
    (verdict,) = verify([work], [WalkedRows(chosen)])
    assert verdict is not None and (verdict.tokens, verdict.error) == ([first], "the schema cannot go on")


def test_logits_that_are_not_finite_fail_the_step() -> None:
    logits, states = rows(1)
    logits[0, 3] = torch.nan
    with pytest.raises(ArithmeticError):
        choose(RowRule(Sampling()), HISTORY, [], logits, states)


def test_scores_are_log_probabilities_of_the_given_tokens() -> None:
    logits, _ = rows(3)
    found = score([5, 6, 7], logits, 1)
    expected = logits.log_softmax(-1)[[0, 1, 2], [5, 6, 7]]
    assert [one.logprob for one in found] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [one.top[0][0] for one in found] == logits.argmax(-1).tolist()
