"""The chaos command in its short form, over the shared deployment; and that it would see what is wrong."""

import random

import pytest

from app.local.instance import Instance
from app.messages import GenerateRequest, Result, SpeculationReport, Status, Timing, Usage
from bench.chaos import DRAIN_S, broken, parse_args, plan, storm
from bench.chaos_clients import Clients
from bench.chaos_faults import FAULTS
from bench.chaos_site import Site
from tests.workers.deployment import Deployment
from workers.office import Office

SHORT = (
    "kill verify",
    "kill redis",
    "cut connections",
    "garbage",
    "stale and foreign",
    "broken tasks",
    "lies",
    "ring all",
)


def test_every_request_ends_once_with_its_own_text_whatever_is_done_to_the_deployment(
    deployment: Deployment, office: Office
) -> None:
    site = Site(Instance(deployment.state, deployment.name), office, random.Random(0))
    texts = [GenerateRequest(prompt="Tell me", raw=True, max_tokens=80, temperature=0.8, seed=i) for i in range(6)]
    found = storm(site, texts, ((0.3, fault) for fault in SHORT), clients=4, gap_s=0.5, seed=0)
    assert not broken(found)
    assert found["requests"]["right"] > 6 and [one["fault"] for one in found["faults"]] == [*SHORT]


def test_a_client_that_still_waits_long_after_a_fault_is_a_broken_promise() -> None:
    one = {"fault": "kill web", "ready_s": 2.0, "moved_s": 2.0 + DRAIN_S}
    report = {"requests": {"wrong": [], "failed": [], "lost": []}, "left behind": [], "faults": [one]}
    assert broken(report) == ["kill web: 120 s later some client had got nothing yet"]
    assert not broken({**report, "faults": [{**one, "moved_s": 40.0}]})


@pytest.mark.parametrize(
    ("status", "tokens", "where"),
    [(Status.DONE, (1, 2), "right"), (Status.DONE, (1, 3), "wrong"), (Status.FAILED, (1,), "failed")],
)
def test_clients_know_a_right_answer_from_a_wrong_one(status: Status, tokens: tuple[int, ...], where: str) -> None:
    clients = Clients("", [GenerateRequest(prompt="x")], [(1, 2)], seed=0)
    result = Result(
        id="r",
        status=status,
        text="",
        token_ids=tokens,
        finish_reason=None,
        usage=Usage(prompt_tokens=1, completion_tokens=2),
        timing=Timing(ttft_s=None, total_s=1.0),
        speculation=SpeculationReport(rounds=1, drafted=0, accepted=0, mean_accepted_length=1.0, by_drafter={}),
    )
    clients._judge(0, result, 1.0)
    tally = clients.tally
    assert (tally.right, len(tally.wrong), len(tally.failed)) == tuple(
        int(where == name) for name in ("right", "wrong", "failed")
    )


def test_the_same_seed_gives_the_same_random_faults() -> None:
    first, second, other = ([*_some(seed)] for seed in ("1", "1", "2"))
    assert first == second != other
    assert {fault for _, fault in first} <= FAULTS.keys()


def _some(seed: str) -> list[tuple[float, str]]:
    drawn = plan(parse_args(["--minutes", "1", "--seed", seed]))
    return [next(drawn) for _ in range(20)]
