"""Test many requests at once, cancelled ones, and unknown ids."""

import json
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.local.client import generate
from app.request import GenerateRequest, SpeculationBounds
from tests.workers.cluster import Cluster, Stream, wait_for
from tests.workers.conftest import Alone
from workers.deployment import Deployment

CROWD = 32
HUGE = 600  # times twelve tokens
ALONE = 4  # as many are timed one after another
ENDED_S = 10.0  # within which a cancelled stream ends


def _mixed(i: int) -> GenerateRequest:
    return GenerateRequest(
        prompt=f"{i}: " + "once upon a time " * (i % 5 * 3 + 1),
        raw=i % 2 == 0,
        max_tokens=8 + 4 * (i * 11 % 16),
        temperature=(0.0, 0.7, 1.0, 1.3)[i % 4],
        top_p=(1.0, 0.9)[i % 3 == 0],
        top_k=(0, 20)[i % 5 == 0],
        seed=1000 + i,
        speculation=SpeculationBounds(enabled=i % 7 != 0),
    )


def _tokens(requests: list[GenerateRequest]) -> int:
    return sum(request.max_tokens for request in requests)


def _took_in_turn_s(cluster: Cluster, requests: list[GenerateRequest]) -> float:
    started = time.monotonic()
    for request in requests:
        cluster.stream(request).read()
    return time.monotonic() - started


def test_concurrent_requests_get_the_same_texts_as_alone_in_time(cluster: Cluster, alone: Alone) -> None:
    """In time: no stream is silent for as long as all of them would take one after another."""
    requests = [_mixed(i) for i in range(CROWD)]
    few = requests[:: CROWD // ALONE + 1]
    in_turn_s = _took_in_turn_s(cluster, few)
    with ThreadPoolExecutor(CROWD) as pool:
        streams = list(pool.map(lambda request: cluster.stream(request).read(), requests))
    again = [request.model_copy(update={"prompt": f"again {request.prompt}"}) for request in few]
    in_turn_s += _took_in_turn_s(cluster, again)
    in_turn_s *= _tokens(requests) / _tokens(few + again)
    wrong = [i for i, stream in enumerate(streams) if stream.tokens != alone(requests[i])]
    assert not wrong
    silent_s = max(stream.longest_gap_s for stream in streams)
    print(f"longest silence {silent_s:.2f} s, one after another {in_turn_s:.2f} s")
    assert silent_s < in_turn_s


def test_a_huge_prompt_holds_up_no_request_behind_it(cluster: Cluster, alone: Alone) -> None:
    """By the order of their ends alone: the huge one takes 28 steps at least, those behind it ten."""
    huge = cluster.stream(GenerateRequest(prompt="river stone " * HUGE, raw=True, max_tokens=2))
    without = SpeculationBounds(enabled=False)
    small = [GenerateRequest(prompt=f"small {i}", raw=True, max_tokens=8, speculation=without) for i in range(3)]
    with ThreadPoolExecutor(1 + len(small)) as pool:
        whole = pool.submit(huge.read)
        started = time.monotonic()
        streams = list(pool.map(lambda request: cluster.stream(request).read(), small))
        took_s = time.monotonic() - started
        assert not huge.tokens, "it is still being read"
        whole.result()
    assert [stream.tokens for stream in streams] == [alone(request) for request in small]
    assert len(huge.tokens) == 2
    print(f"three small ones beside it {took_s:.2f} s, the huge one {huge.first_s:.2f} s")


def test_a_cancelled_request_ends_within_a_round_and_frees_its_pages(cluster: Cluster, deployment: Deployment) -> None:
    stream = cluster.stream(GenerateRequest(prompt="Go on", raw=True, max_tokens=4000, temperature=0.9))
    stream.read(until=20)
    started = time.monotonic()
    shown = cluster.get(f"/api/requests/{stream.id}", method="DELETE")
    committed = shown["token_ids"]
    stream.read()
    took_s = time.monotonic() - started
    assert stream.result["finish_reason"] == "cancelled"
    assert stream.tokens == committed == cluster.get(f"/api/requests/{stream.id}")["token_ids"]
    assert took_s < ENDED_S and len(committed) < 4000, "its round ends, not the request"
    wait_for(lambda: not _running(deployment), limit_s=5.0, what="the verifier to let go")
    print(f"cancelled: the stream ended {1e3 * took_s:.0f} ms later")


def test_a_stream_resumes_at_any_offset_during_and_after_a_request(cluster: Cluster, alone: Alone) -> None:
    request = GenerateRequest(prompt="Resume me", raw=True, max_tokens=60, seed=3, temperature=1.0)
    stream = cluster.stream(request).read(until=10)
    stream.close()
    resumed = Stream.at(cluster.url, stream.id, len(stream.tokens)).read()
    assert stream.tokens + resumed.tokens == alone(request)
    for offset in (0, 1, 37, 60):
        rest = Stream.at(cluster.url, stream.id, offset).read()
        assert rest.tokens == alone(request)[offset:] and rest.result == resumed.result


def test_lost_mail_delays_a_request_and_never_loses_one(cluster: Cluster, deployment: Deployment, alone: Alone) -> None:
    """Store and assign a request without mail to its verifier, as if the sender had died."""
    request = GenerateRequest(prompt="Nobody told", raw=True, max_tokens=20)
    wait_for(lambda: not _running(deployment), what="an idle verifier")
    deployment.place = lambda request_id: None  # type: ignore[method-assign]
    record = deployment.submit(request)
    (verifier,) = deployment.nodes.live("verify")
    assert deployment.requests.assign(record.id, verifier.owner)
    wait_for(lambda: deployment.requests.snapshot(record.id).finish_reason, limit_s=10.0, what="its end")
    assert list(deployment.requests.snapshot(record.id).tokens) == alone(request)


def _running(deployment: Deployment) -> int:
    return sum(int(node.info["sequences"]) for node in deployment.nodes.live("verify"))


def test_an_interrupted_caller_cancels_its_request(cluster: Cluster, deployment: Deployment) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    request = GenerateRequest(prompt="Hello", raw=True, max_tokens=4000, temperature=0.7)
    with pytest.raises(KeyboardInterrupt):
        generate(cluster.url, request, interrupt)
    wait_for(lambda: deployment.requests.active() == 0, limit_s=2.0, what="the request to end")


def test_a_request_that_names_an_unknown_drafter_gets_the_known_names(cluster: Cluster) -> None:
    body = {"prompt": "Hello", "max_tokens": 5}
    with pytest.raises(urllib.error.HTTPError) as caught:
        cluster.post({**body, "speculation": {"drafters": ["twim"]}})
    with caught.value as answer:
        error = json.load(answer)["error"]
    assert (answer.code, error["field"]) == (400, "speculation.drafters")
    assert "drafter 'twim' does not exist here; the drafters are lookup, suffix, twin" in error["message"]
    done = cluster.post({**body, "speculation": {"drafters": ["twin"], "max_draft_tokens": 2}})
    assert done["status"] == "done"
