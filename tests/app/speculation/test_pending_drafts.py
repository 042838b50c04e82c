"""Test how long drafts are waited for, what their answers teach, and which nodes read meanwhile."""

from math import inf, nan
from typing import Any

import pytest

from app.engine.step_costs import StepCosts
from app.messages import DraftJob, DraftReport
from app.policy import Policy
from app.round_observer import VerifiedStep
from app.speculation.draft_costs import DEFAULT_HOP_S
from app.speculation.drafter_pool import DrafterPool
from app.speculation.guard import Way
from app.speculation.length_protocol import LengthDecision
from app.speculation.marginal import DraftPrice
from app.speculation.pending_drafts import FIRST_WAITS, MIN_WAIT_S
from app.state import BatchEntry, Sequence, Tree
from tests.app.verifier.parts import HandClock, Parts, RunsAhead, drafts_asked, message, parts, start, verdict

NOW_S = 1000.0
NOTHING = {"tokens": (), "parents": (), "survival": (), "proposers": (), "confidence": {}}


def known(clock: HandClock | None = None, **settings: Any) -> Parts:
    """Make parts that know what drafting takes, 2 ms and 3 ms a token, and reading, 1 ms a token."""
    one = parts(pages=256, clock=clock or HandClock(), **settings)
    for _ in range(9):
        report = DraftReport(guess_s=0.012, guessed=4, read_s=0.1, read_tokens=100)
        one.draft_costs.update(1, 4, 0.114, [report])
    return one


def ask(one: Parts, *sequences: Sequence, depth: int = 4, worth_s: float = inf) -> list[DraftJob]:
    """Ask for a draft of each sequence."""
    return drafts_asked(one.speculation, [*sequences], [depth] * len(sequences), Policy(), worth_s)


def answer(sequence: Sequence, base: int | None = None, drafters: tuple[str, ...] = ("small",), **report: Any) -> Any:
    """Make the answer to the sequence's last job, or that at `base`, with the same report of each drafter."""
    seen = len(sequence.tokens) if base is None else base
    reports = {name: DraftReport(**{"seen": seen, **report}) for name in drafters}
    return message(request_id=sequence.record.id, base=seen, reports=reports, confidence=dict.fromkeys(drafters, 0.9))


def asked_of(jobs: list[DraftJob]) -> dict[tuple[str, str], int]:
    """Return the draft tokens by request and model drafter."""
    return {(job.request_id, name): job.max_draft_tokens for job in jobs for name in job.drafters if name != "lookup"}


@pytest.mark.parametrize(("worth_s", "wait_s"), [(0.0, 0.014), (0.004, 0.018), (9.0, 3.0 * 0.014)])
def test_late_trees_are_waited_for_no_longer_than_they_are_worth(worth_s: float, wait_s: float) -> None:
    one = known()
    ask(one, sequence := start(one, "r"), worth_s=worth_s)
    assert sequence.due_s - NOW_S == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("policy", "wait_s"),
    [
        (Policy(draft_wait_s=5.0), 3.0 * 0.050),
        (Policy(draft_wait_s=5.0, draft_wait_factor=1.5), 1.5 * 0.050),
        (Policy(draft_wait_s=0.05), 0.05),
    ],
)
def test_drafts_are_waited_for_by_the_policys_factor_and_bound(policy: Policy, wait_s: float) -> None:
    one = known()
    drafts_asked(one.speculation, [sequence := start(one, "r")], [16], policy)
    assert sequence.due_s - NOW_S == pytest.approx(wait_s)


def test_the_first_waits_grow_until_it_is_known_what_drafts_take() -> None:
    """The first drafts of slow drafters would always be late, and late drafts teach nothing."""
    one = parts(pool=DrafterPool({"small": "draft:1"}, (), 0.0), clock=(clock := HandClock()))
    sequence = start(one, "r", max_tokens=50)

    def wait_s() -> float:
        ask(one, sequence)
        return sequence.due_s - clock.time()

    first = [wait_s() for _ in range(FIRST_WAITS)]
    assert first == pytest.approx([min(0.25, MIN_WAIT_S * factor) for factor in (3, 6, 12, 24)])
    assert wait_s() == pytest.approx(MIN_WAIT_S), "none of them came: it may never answer"


def test_a_report_teaches_hop_guess_and_reading_apart() -> None:
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for _ in range(3):
        ask(one, sequence)
        clock.now_s += 0.120
        one.speculation.receive(answer(sequence, guess_s=0.016, guessed=4, read_s=0.1, read_tokens=200))
        sequence.kv.tokens.append(7)
    costs = one.draft_costs
    assert (costs.hop_s, costs.guess_s(1, 4), costs.read_s(200)) == pytest.approx((0.004, 0.016, 0.1))


def test_drafts_before_which_nodes_read_show_what_reading_takes_alone() -> None:
    """Other nodes may read for longer, and all take longer meanwhile."""
    one = known(clock := HandClock())
    before_s = one.draft_costs.hop_s, one.draft_costs.guess_s(1, 4)
    for name in "abcdefghi":
        ask(one, sequence := start(one, name, length=200))
        clock.now_s += 2.0
        one.speculation.receive(answer(sequence, guess_s=0.9, guessed=4, read_s=0.4, read_tokens=200))
    assert (one.draft_costs.hop_s, one.draft_costs.guess_s(1, 4)) == before_s
    assert one.draft_costs.read_s(100) == pytest.approx(0.2)


@pytest.mark.parametrize("may_draft", [True, False])
def test_the_first_drafts_of_nodes_that_guess_ahead_say_nothing_of_what_later_ones_take(may_draft: bool) -> None:
    """Drafts are first again behind a round without any, whether none pays or the policy allows none."""
    one = parts(overlapping=RunsAhead(), clock=(clock := HandClock()))
    sequence, costs, waits = start(one, "r"), one.draft_costs, []
    for depth, guessed in ((4, 4), (4, 1), (0, 0), (4, 4), (4, 1)):
        if depth or may_draft:
            ask(one, sequence, depth=depth)
        else:
            one.speculation.request_drafts([sequence], Policy(max_draft_tokens=0))
        clock.now_s += 0.020
        if depth:
            one.speculation.receive(answer(sequence, guess_s=0.004 * guessed, guessed=guessed))
            waits.append((costs.is_known, costs.seconds(1, 4) - costs.hop_s))
        sequence.kv.tokens.append(7)
    assert waits == [(False, 0.0), *[(True, pytest.approx(0.004))] * 3]


@pytest.mark.parametrize("late", [False, True])
def test_nodes_that_never_come_to_guess_ahead_are_known_after_the_first_waits(late: bool) -> None:
    """Requests may end with their first drafts, and a node may always be late."""
    one, known = parts(overlapping=RunsAhead(), clock=(clock := HandClock()), pages=256), []
    for number in range(FIRST_WAITS):
        if not (late and number):
            sequence = start(one, f"{number}")
        ask(one, sequence)
        base = len(sequence.tokens)
        sequence.kv.tokens += [7] * late
        clock.now_s += 0.020
        one.speculation.receive(answer(sequence, base, guess_s=0.016, guessed=4))
        known.append(one.draft_costs.is_known)
    assert known == [False] * (FIRST_WAITS - 1) + [True]


LIES = [
    {"guess_s": -1.0},
    {"guess_s": nan},
    {"guess_s": 1e9, "guessed": 4},
    {"read_s": nan},
    {"read_s": -5.0, "read_tokens": 9},
    {"guess_s": 0.08, "read_s": 0.08},
    {"guessed": -4},
    {"read_tokens": -(10**9)},
    {"seen": 10**9},
    {"seen": -(10**9)},
    {"guessed": 10**9, "read_tokens": 10**9},
]


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_report_costs_time_only(lie: dict[str, Any]) -> None:
    """The tree is used, and what is expected afterwards lies between nothing and the waits that came."""
    one = parts(clock=(clock := HandClock()), pages=256)
    sequence = start(one, "r", length=200, max_tokens=50)
    for _ in range(20):
        ask(one, sequence)
        clock.now_s += 0.1
        one.speculation.receive(answer(sequence, **lie))
        assert sequence.tree is not None and sequence.tree.tokens == [1, 2]
        verdict(one, sequence, [7])
        sequence.kv.tokens.append(7)
    assert 0.0 <= one.draft_costs.seconds(1, 4) <= 0.1 + 1e-9
    assert 0.0 <= one.draft_costs.read_s(1000) < inf
    assert 0 <= one.speculation.pending.unread(sequence, "draft:1") <= len(sequence.tokens)
    assert one.speculation.request_drafts([sequence], Policy()) is not None


def test_of_another_version_only_the_wait_is_known() -> None:
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for _ in range(20):
        ask(one, sequence)
        clock.now_s += 0.05
        one.speculation.receive(message(base=len(sequence.tokens)))
        sequence.kv.tokens.append(7)
    assert one.draft_costs.seconds(1, 4) == pytest.approx(0.05, rel=0.05)


def test_the_error_is_a_median_and_counts_a_batch_once() -> None:
    one = known(clock := HandClock())
    sequences = [start(one, name) for name in "ab"]
    assert one.speculation.pending.error is None
    for came_s in (0.028, 0.028, 60.0):  # 0.014 is expected at first
        ask(one, *sequences)
        clock.now_s += came_s
        for sequence in sequences:
            one.speculation.receive(answer(sequence))
            sequence.kv.tokens.append(7)
    assert len(one.speculation.pending._errors) == 3
    assert one.speculation.pending.error == pytest.approx(0.5, abs=0.3)


def test_a_wait_that_is_too_short_is_found_so() -> None:
    """Drafters that take longer than the first wait answer when the next job is under way already."""
    one = parts(clock=(clock := HandClock()))
    sequence = start(one, "r")
    for _ in range(4):
        base = len(sequence.tokens)
        ask(one, sequence)
        waited_s = sequence.due_s - clock.now_s
        clock.now_s += waited_s + 0.001
        sequence.tokens.append(9)  # it went on without
        ask(one, sequence)
        one.speculation.receive(message(base=base))
    assert sequence.due_s - clock.now_s > 3.0 * MIN_WAIT_S
    one.speculation.remove("r")
    before = one.draft_costs.seconds(1, 3)
    one.speculation.receive(message(base=base))
    assert one.draft_costs.seconds(1, 3) == before, "an ended request's answer is none"


def test_rounds_that_end_without_the_drafts_show_that_the_wait_is_too_short() -> None:
    """A fuser answers with an empty tree when a round is due."""
    one = parts(pages=256, clock=(clock := HandClock()), routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, (), core_share=0.0))
    sequence = start(one, "s", generated=1)
    for _ in range(FIRST_WAITS + 4):
        drafts_asked(one.speculation, [sequence], [4], Policy(draft_wait_s=60.0))
        waited_s = sequence.due_s - clock.now_s
        clock.now_s = sequence.due_s
        one.speculation.receive(message(request_id="s", base=len(sequence.tokens), **NOTHING))
        sequence.kv.tokens += [7]
    assert waited_s > 20 * MIN_WAIT_S


def test_a_late_tree_teaches_acceptance_once() -> None:
    one = known()
    ask(one, sequence := start(one, "r"))
    expectation = one.lengths.modes.with_models.of(sequence.record)
    (hopeful,) = expectation.survival(1)
    late = message(base=len(sequence.tokens))
    sequence.tokens.append(9)
    one.speculation.receive(late)
    assert sequence.tree is None, "too late to be verified"
    (lowered,) = expectation.survival(1)
    assert lowered < hopeful, "but its verdict is known"
    one.speculation.receive(late)
    assert expectation.survival(1) == [lowered], "the same answer again is none"


def test_no_model_gets_a_job_in_a_model_free_round() -> None:
    pool = DrafterPool({"small": "draft:1"}, ("lookup",), alone="verify:1")
    one = parts(pool=pool, clock=(clock := HandClock()))
    sequence = start(one, "r")
    (job,) = drafts_asked(one.speculation, [sequence], [3], Policy(), is_model_free=True)
    assert job.drafters == ("lookup",) and job.to == job.fuser == "verify:1"
    clock.now_s += 0.002
    one.speculation.receive(message())
    assert not one.draft_costs.is_known, "what that took is no model's price"
    assert one.lengths.modes.model_free.costs.seconds(1, 3) == pytest.approx(0.002)
    before = one.lengths.modes.with_models.of(sequence.record).survival(1)
    verdict(one, sequence, [1, 7])
    assert one.lengths.modes.with_models.of(sequence.record).survival(1) == before


def test_a_split_of_the_machine_is_not_charged_for_drafts_asked_for_under_another() -> None:
    one = known(clock := HandClock())
    ask(one, sequence := start(one, "r"))
    clock.now_s += 0.9
    one.draft_costs.use(1)
    one.speculation.receive(answer(sequence, guess_s=0.8, guessed=4))
    assert one.draft_costs.seconds(1, 4) == pytest.approx(0.014)


def test_drafts_before_which_much_must_be_read_are_not_waited_for() -> None:
    one = known()
    sequence = start(one, "r", length=200, generated=1)
    own, reading = ask(one, sequence, worth_s=0.050)
    assert (own.drafters, own.to, own.max_draft_tokens) == (("lookup",), "fuse", 4), "tables draft meanwhile"
    assert (reading.drafters, reading.to, reading.start, reading.is_reading) == (("small",), "draft:1", 0, True)
    assert not own.is_reading
    (own,) = ask(one, other := start(one, "s", length=200, generated=1), worth_s=1.0)
    assert other.due_s > NOW_S and own.drafters == ("small", "lookup"), "worth the wait"


def test_while_drafters_read_a_sequence_others_draft_for_it() -> None:
    one = known(clock := HandClock())
    sequence = start(one, "r", length=200, generated=1)
    assert asked_of(ask(one, sequence, worth_s=0.050)) == {("r", "small"): 1}
    one.speculation.receive(message(base=201, proposers=(("lookup",),) * 2, confidence={"lookup": 0.9}))
    assert sequence.tree is not None
    verdict(one, sequence, [1, 7])
    for token in range(2):
        sequence.kv.tokens += [token]
        (own,) = ask(one, sequence, worth_s=0.050)
        assert own.drafters == ("lookup",), "the model is at the prompt yet"
        one.speculation.receive(message(base=201 + token + 1, **NOTHING))
    clock.now_s += 0.2
    one.speculation.receive(answer(sequence, base=201, read_s=0.15, read_tokens=200))
    assert sequence.tree is not None and not sequence.tree.tokens, "what it guessed there is of no use any more"
    (job,) = ask(one, sequence, worth_s=0.050)
    assert job.drafters == ("small", "lookup") and job.tokens == (0, 1), "its report says that it has read"


def test_a_node_that_does_not_report_is_asked_to_read_again() -> None:
    one = known(clock := HandClock())
    sequence = start(one, "r", length=200, generated=1)
    asked = []
    for _ in range(4):
        asked.append(asked_of(ask(one, sequence, worth_s=0.050)))
        clock.now_s += 0.6 * Policy().draft_wait_s
    assert asked == [{("r", "small"): 1}, {}, {("r", "small"): 1}, {}]


def test_a_sequence_goes_on_without_the_node_that_reads_it_and_others_with_it() -> None:
    one = known(routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:2"}, ()))
    reader, near = start(one, "reader", 200, generated=1), start(one, "near", generated=1)
    one.speculation.receive(answer(both := start(one, "both", 200, generated=1), drafters=("other",)))
    ask(one, both)
    one.speculation.receive(answer(both, drafters=("other",)))
    both.kv.tokens.append(7)
    asked = asked_of(ask(one, reader, near, both, worth_s=0.050))
    assert asked == {
        **{("reader", name): 1 for name in ("small", "other")},
        **{("near", name): 4 for name in ("small", "other")},
        **{("both", "small"): 1, ("both", "other"): 4},
    }
    assert reader.due_s == 0.0 and min(near.due_s, both.due_s) > NOW_S
    assert asked_of(ask(one, near, worth_s=0.050)) == {("near", name): 4 for name in ("small", "other")}


def test_a_node_has_read_what_each_of_its_drafters_has() -> None:
    one = known(routing="all")
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:1"}, ()))
    ask(one, sequence := start(one, "r", 200, generated=1), worth_s=0.050)
    reports = {name: DraftReport(seen=seen) for name, seen in (("small", 201), ("other", 20))}
    one.speculation.receive(message(request_id="r", base=201, reports=reports, confidence=dict.fromkeys(reports, 0.9)))
    assert one.speculation.pending.unread(sequence, "draft:1") == 181


@pytest.mark.parametrize("seen", [0, 100])
def test_a_node_that_left_a_text_when_it_drafted_is_asked_again(seen: int) -> None:
    """It reads in spare time; else its request went on plainly once more, and a full node's rounds taught nothing."""
    one = known()
    sequence = start(one, "r", length=200, generated=1)
    ask(one, sequence, worth_s=9.0)
    one.speculation.receive(answer(sequence, seen=seen))
    assert one.speculation.pending.unread(sequence, "draft:1") == 0
    assert not [job for job in ask(one, sequence, worth_s=0.050) if job.is_reading]


def test_as_many_texts_as_there_is_time_for_are_read_before_the_drafts() -> None:
    """Reading takes 0.1 s, 0.1 s and 0.05 s, drafting 0.014 s."""
    one = known()
    readers = [start(one, name, length, generated=1) for name, length in (("a", 99), ("b", 99), ("c", 49))]
    jobs = {job.request_id: job for job in ask(one, *readers, worth_s=0.170) if "small" in job.drafters}
    assert [jobs[name].is_reading for name in "abc"] == [False, True, False]


@pytest.mark.parametrize(("worth_s", "learns"), [(0.050, True), (9.0, False)])
def test_a_text_that_nothing_waits_for_leaves_a_round_to_learn_from(
    worth_s: float, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what drafts take in fact would not be seen beside a steady load of new texts."""
    one = known()
    sequences = [start(one, name, length, generated=1, max_tokens=50) for name, length in (("near", 5), ("far", 200))]
    assert (slowdown(one, sequences, worth_s, monkeypatch) > 1.5) is learns


@pytest.mark.parametrize("is_known", [True, False])
def test_a_round_of_models_is_judged_once_it_is_known_what_drafts_take(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = known() if is_known else parts(pages=256, clock=HandClock())
    sequences = [start(one, "near", 5, generated=1, max_tokens=50)]
    assert (slowdown(one, sequences, inf, monkeypatch) > 1.5) is is_known


def slowdown(one: Parts, sequences: list[Sequence], worth_s: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return that of models, after rounds of them of which the last takes 50 s."""
    depths = [4] * len(sequences)
    guard, found = one.lengths.modes.guard, LengthDecision(depths, False, worth_s, price=DraftPrice(one.draft_costs))
    monkeypatch.setattr(one.lengths, "plan", lambda batch: found)
    for round_s in (0.1, 0.1, 50.0):
        one.speculation.request_drafts(sequences, Policy())
        ended_s = guard._round.began_s + round_s if guard._round else 0.0
        guard.end({sequence.record.id: 1 for sequence in sequences}, ended_s)
    return guard.slowdown(Way.MODELS)


def test_reading_is_no_wrong_draft_to_routing() -> None:
    one = known()
    one.speculation.follow(DrafterPool({"small": "draft:1", "other": "draft:1"}, ()))
    sequence = start(one, "reader", length=200, generated=1)
    for _ in range(3):
        ask(one, sequence, worth_s=0.050)
        sequence.kv.tokens += [7]
    assert not one.speculation.router.asked_rounds


def test_what_a_tree_costs_the_host_is_part_of_the_price() -> None:
    one = parts(costs=StepCosts({1: 0.010, 64: 0.011}), pool=DrafterPool({}, ("lookup",)))
    sequence = start(one, "r", max_tokens=50)

    def step(tree: Tree, host_s: float) -> None:
        entry = BatchEntry(sequence.kv, 0, [], tree, final=True)
        one.speculation.on_step(VerifiedStep([entry], [], 1, 0.010), host_s)

    step(Tree(), 0.001)
    assert one.speculation.request_drafts([sequence], Policy())
    for _ in range(2):
        step(Tree([1], [0], [0.9], [("lookup",)]), 0.5)
    assert not one.speculation.request_drafts([sequence], Policy())


def test_before_any_answer_a_hop_is_expected() -> None:
    assert parts().draft_costs.seconds(1, 4) == DEFAULT_HOP_S
