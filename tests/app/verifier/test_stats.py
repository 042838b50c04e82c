"""Test the load and the figures that a verifier reports of itself."""

import pytest

from app.engine.step_costs import Reading, StepCosts
from app.load import VerifierLoad
from app.messages import DrafterStats
from app.policy import Policy
from app.round_observer import VerifiedRound, VerifiedStep
from app.state import BatchEntry, Tree, Verdict
from tests.app.verifier.parts import HandClock, drafts_asked, message, parts, start


def test_a_verifier_reports_its_load():
    clock = HandClock()
    one = parts(costs=StepCosts({1: 0.02}, reading=Reading(1e-5, 1e-6)), clock=clock)
    long, prompt = start(one, "r", length=30, generated=2), start(one, "p", length=7)
    long.kv.cached = 31
    drafts_asked(one.speculation, [long], [2], Policy())
    clock.now_s += 0.25
    one.speculation.receive(message(base=32))
    for tree, path in ((Tree([1, 2], [0, 1], [0.9, 0.8], [("a", "b"), ("a",)]), [1]), (Tree(), [])):
        entry = BatchEntry(long.kv, 0, [], tree, final=True)
        verified = VerifiedRound(long, entry, Verdict(path, [7]), [7])
        one.stats.on_verdict(VerifiedStep([entry], [verified], 1, 0.1))
    load = VerifierLoad.model_validate(one.stats.report(one.sequences.all())["load"])
    assert (load.sequences, load.prompt_tokens, load.contexts) == (2, 7, (31,))
    assert load.step_s == pytest.approx(0.02 + 31 * 1.1e-5)
    assert load.draft_wait_s == pytest.approx(0.25)
    assert load.accepted_length == 2.0, "of rounds with drafts"
    assert load.by_drafter == {"a": DrafterStats(drafted=2, accepted=1), "b": DrafterStats(drafted=1, accepted=1)}
    assert prompt.generated == 0


def test_report_has_a_verifiers_sequences_cache_and_prompt_tokens() -> None:
    one = parts(pages=8)
    start(one, "r", length=30, generated=2)
    one.stats.record_reused(16)
    report = one.stats.report(one.sequences.all())
    assert (report["sequences"], report["prompt_tokens"], report["prompt_tokens_reused"]) == (1, 32, 16)
    assert report["cache_tokens"] == report["cache_tokens_free"] == one.runner.capacity_tokens
    assert (report["nodes_looked_at"], report["nodes_pruned"], report["asked_rounds"]) == (0, 0, {})
