"""Test audits: over a real Redis which are chosen, where they run, how they are counted; then in real processes."""

import logging
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from app.assembly.verifier import build_replay
from app.counters import field
from app.messages import TARGET, Event, FinishReason, ToVerifier
from app.metrics import AUDITS, GROUP
from app.pipeline import LocalPipeline
from app.request import GenerateRequest, Sampling
from app.store.keys import Keys
from tests import fakes
from tests.workers.cluster import Cluster, wait_for
from tests.workers.conftest import with_settings
from tests.workers.test_metrics import scraped, settled
from workers.audit import MOST_WAITING, Auditor
from workers.deployment import Deployment

BOX = "verify:v"
MODEL = "target of the test"
RUNNER = fakes.served()
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
Make = Callable[..., Auditor]


@pytest.fixture(autouse=True)
def _all_pages_come_back() -> Iterator[None]:
    yield
    assert RUNNER.pool.num_free == RUNNER.pool.num_pages


@pytest.fixture
def local(lone_deployment: Deployment) -> LocalPipeline:
    return fakes.pipeline(RUNNER, store=lone_deployment.requests)  # type: ignore[arg-type]


@pytest.fixture
def auditor_of(lone_deployment: Deployment, local: LocalPipeline) -> Make:
    """Make a verifier's auditor under other settings."""

    def made(**settings: object) -> Auditor:
        deployment = with_settings(lone_deployment, **settings)
        replay = partial(build_replay, deployment.settings, local.verifier, deployment.tokenizer)
        return Auditor(deployment, BOX, MODEL, replay)

    return made


@pytest.fixture
def answered(lone_deployment: Deployment, local: LocalPipeline) -> Callable[..., str]:
    """Store a request with the target's own tokens, and perhaps another one at a place."""

    def answered(
        request_id: str, wrong_at: int | None = None, reason: FinishReason = FinishReason.LENGTH, target: str = MODEL
    ) -> str:
        sampling = Sampling(seed=8, temperature=1.0)
        record = fakes.record(PROMPT, 12, request_id=f"plain {request_id}", sampling=sampling)
        (text,) = fakes.texts(local, record)
        if wrong_at is not None:
            text[wrong_at] = (text[wrong_at] + 1) % fakes.VOCAB
        store = lone_deployment.requests
        store.create(record.model_copy(update={"id": request_id}), limit=99)
        store.assign(request_id, "owner", target)
        event = Event(offset=0, tokens=tuple(text), proposers=(TARGET,) * len(text), finish_reason=reason)
        store.commit("owner", [(request_id, event)])
        return request_id

    return answered


def run(auditor: Auditor, *request_ids: str) -> dict[str, float]:
    """Audit these requests; return what was counted."""
    auditor.add(request_ids)
    while auditor.has_work:
        auditor.step()
    changes = auditor._deployment.counters.changes(GROUP)
    found = {result: changes.pop(field(AUDITS, (result,)), ([], [0.0]))[1][0] for result in AUDITS.values}
    assert not changes, "it counts as no user's request"
    return found


def counts(same: int = 0, differs: int = 0, skipped: int = 0) -> dict[str, float]:
    return {"same": same, "differs": differs, "skipped": skipped}


def test_the_targets_own_text_is_the_same_and_nothing_in_redis_changes(
    auditor_of: Make, answered: Callable[..., str], redis_client: redis.Redis
) -> None:
    request_id, auditor = answered("r"), auditor_of()

    def state() -> dict[str, tuple[bytes, int]]:
        keys = sorted(map(str, redis_client.keys("*")))
        return {key: (redis_client.execute_command("DUMP", key, NEVER_DECODE=True), _expires(key)) for key in keys}

    def _expires(key: str) -> int:
        return int(redis_client.execute_command("PEXPIRETIME", key))

    before = state()
    assert run(auditor, request_id) == counts(same=1)
    assert state() == before


def test_another_token_differs_and_is_logged_without_text(
    auditor_of: Make, answered: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert run(auditor_of(), answered("sound"), answered("doctored", wrong_at=9)) == counts(same=1, differs=1)
    (line,) = caplog.records
    assert line.getMessage() == "differs without speculation from token 9 on"
    assert line.__dict__["request_id"] == "doctored"


def test_what_cannot_be_compared_is_skipped(
    auditor_of: Make, answered: Callable[..., str], lone_deployment: Deployment, redis_client: redis.Redis
) -> None:
    assert run(auditor_of(), "unheard of", answered("of another", target="another")) == counts(skipped=1)
    expired, auditor = answered("expired"), auditor_of()
    auditor.add([expired])
    redis_client.delete(Keys(lone_deployment.settings.namespace).request(expired))
    assert run(auditor) == counts(skipped=1)
    assert run(auditor_of(request_ttl_s=0.0), answered("held up")) == counts(skipped=1), "its life ended meanwhile"
    assert run(auditor_of(), *["nobody"] * (MOST_WAITING + 1)) == counts(skipped=MOST_WAITING + 1)


def test_what_failed_or_was_cancelled_is_not_audited(auditor_of: Make, answered: Callable[..., str]) -> None:
    ends = (FinishReason.CANCELLED, FinishReason.ERROR)
    assert run(auditor_of(), *(answered(reason, reason=reason) for reason in ends)) == counts()


def test_audits_go_to_another_verifier_of_the_same_target(auditor_of: Make, lone_deployment: Deployment) -> None:
    records = [fakes.record(PROMPT, request_id=f"r{i}") for i in range(200)]
    boxes = lone_deployment.mailboxes

    def chosen(mailbox: str, **settings: object) -> tuple[str, ...]:
        auditor_of(**settings).choose(records)
        items = [] if boxes.first(mailbox) is None else [str(boxes.first(mailbox))]
        boxes._client.delete(boxes._keys.mail(mailbox))
        return tuple(request_id for item in items for request_id in ToVerifier.read(item).audit)

    assert chosen(BOX) == (), "none by default"
    half = chosen(BOX, audit_share=0.5)
    assert half == chosen(BOX, audit_share=0.5) and 60 < len(half) < 140
    about = {"target": MODEL, "tokenizer": lone_deployment.tokenizer.sha256}
    lone_deployment.nodes.beat("verify", "v", "this", progress_s=1.0, info=about)
    lone_deployment.nodes.beat("verify", "other", "another", progress_s=1.0, info={**about, "target": "another"})
    assert len(chosen(BOX, audit_share=1.0)) == 200
    lone_deployment.nodes.beat("verify", "twin", "its twin", progress_s=1.0, info=about)
    assert len(chosen("verify:twin", audit_share=1.0)) == 200 and boxes.first(BOX) is None


def test_real_processes_audit_what_they_answered(cluster: Cluster, deployment: Deployment) -> None:
    """The mail is sent by hand: other tests of this deployment count its requests."""
    before = settled(cluster)

    def gained(name: str, *labels: tuple[str, str]) -> float:
        return scraped(cluster)[f"paceline_{name}_total", labels] - before[f"paceline_{name}_total", labels]

    request = GenerateRequest(prompt="Audit me", raw=True, max_tokens=40, temperature=0.9, seed=5, stop="never said")
    one = cluster.stream(request).read()
    answer, store = deployment.requests.snapshot(one.id), deployment.requests
    store.create(answer.record.model_copy(update={"id": "doctored"}), limit=99)
    store.assign("doctored", "nobody", answer.target)
    tokens = (*answer.tokens[:-1], answer.tokens[-1] ^ 1)
    event = Event(offset=0, tokens=tokens, proposers=(TARGET,) * 40, finish_reason=FinishReason.LENGTH)
    store.commit("nobody", [("doctored", event)])
    deployment.post("verify:verify-1", [ToVerifier(audit=(one.id, "doctored", "unheard of"))])

    def results() -> list[float]:
        return [gained("audit", ("result", result)) for result in AUDITS.values]

    wait_for(lambda: results() == [1, 1, 1], what=f"three audits, not {results()}")
    assert '"request_id": "doctored"' in cluster.log("verify")
    wait_for(lambda: gained("requests_ended", ("reason", "length")) == 1, 10, "the request in the metrics")
    assert gained("prompt_tokens") == len(answer.record.prompt_ids), "no replay is counted as a request"
    assert min(cluster.status().audits.values()) >= 1
