"""Test the simulation of PipeInfer against closed forms."""

import pytest

from app.state import Guess
from lab.simulate.log import Log
from lab.testbeds.figures import Served
from lab.testbeds.pipeinfer import PipeInfer
from lab.testbeds.roofline import step_costs
from lab.testbeds.texts import Wanted, made
from lab.testbeds.worlds import FOLDER, Number, WorldSpec, read_world

PROMPT, OUTPUT = 4, 41


def world(name: str) -> WorldSpec:
    """A world of CoSine's with links and a drafter that take no time."""
    found = read_world(FOLDER / f"{name}.json")
    nothing = Number(0.0, "of this test")
    links = {name: link.model_copy(update={"latency_s": nothing}) for name, link in found.links.items()}
    mixture = found.drafters["mixture"].model_copy(update={"host_s": nothing})
    target = found.target.model_copy(update={"host_s": nothing})
    changed = {"links": links, "drafters": {**found.drafters, "mixture": mixture}, "target": target}
    return found.model_copy(update=changed)


def served(own: WorldSpec, is_right: bool, tokens: int, streams: int = 1) -> Served:
    log = made(own, [Wanted("physics", PROMPT, OUTPUT)] * streams, 0)
    chains = tuple(
        tuple((Guess(token if is_right else token + 1, 0.9, 0, 0.0),) for token in text.tokens) for text in log.texts
    )
    drafter = log.drafters["mixture"].model_copy(update={"guesses": chains})
    changed = Log.model_construct(**{**dict(log), "drafters": {"mixture": drafter}})
    return PipeInfer(own, changed, "mixture", tokens, streams, streams).run()


def pass_s(own: WorldSpec) -> float:
    return step_costs(own).seconds(1)


@pytest.mark.parametrize("name", ["cosine-70b", "cosine-70b-tensor"])
def test_useless_drafts_cost_a_lone_request_no_more_than_what_was_in_a_stage(name: str) -> None:
    found, own = served(world(name), False, 2), world(name)
    plain_s, stages = OUTPUT * pass_s(own), own.target.stages.value
    # On one device a run that turned out wrong ends its pass; in stages it has left the first by then.
    most = 2.0 if stages == 1 else 1.0 + 1.0 / stages
    assert plain_s <= found.ended[0].times.total_s <= 1.05 * most * plain_s
    assert found.accepted == 0 and found.tokens == OUTPUT


def test_right_drafts_fill_the_stages() -> None:
    own = world("cosine-70b")
    stage_s = pass_s(own) / 4
    for tokens in (1, 3):
        found = served(own, True, tokens)
        # Prompt and the first run pass all stages one after the other; then five runs are in the four stages.
        expected_s = 2 * 4 * stage_s + (OUTPUT - 2) / (1.25 * tokens) * stage_s
        assert found.ended[0].times.total_s == pytest.approx(expected_s, rel=0.12), tokens
        assert found.drafted == found.accepted or found.drafted - found.accepted < tokens


def test_all_texts_end_with_all_tokens_however_many_run_at_once() -> None:
    own = world("cosine-70b")
    for streams in (2, 7):
        found = served(own, True, 2, streams)
        assert len(found.ended) == streams and found.tokens == streams * OUTPUT


def test_requests_at_times_of_their_own_come_then() -> None:
    own = world("cosine-70b")
    log = made(own, [Wanted("physics", PROMPT, OUTPUT)] * 2, 0)
    found = PipeInfer(own, log, "mixture", 2, 1, 3, [0.0, 100.0, 200.0]).run()
    assert len(found.ended) == 3 and found.ended[2].at_s == pytest.approx(200.0 + found.ended[2].times.total_s)
