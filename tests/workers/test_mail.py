"""Test garbage, false, duplicate and stale messages in every mailbox of a running deployment: no effect."""

import json
import os
import signal
import threading
import time
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from app.messages import Draft, DraftJob, Mail, ToDrafter, ToFuser, ToVerifier, TreeMessage
from app.policy import Policy
from app.request import GenerateRequest, Sampling
from app.store.connect import connect
from tests.workers.cluster import Cluster, Stream, wait_for
from tests.workers.conftest import Alone
from workers.celery_app import mailbox_queue
from workers.deployment import Deployment

MAILBOXES = ("verify:verify-1", "draft:draft-1", "fuse", "settle")
GARBAGE = (
    "", "no JSON", "{", "null", "[]", "7", '"text"', "{}", '{"unknown": 1}', '{"trees": 3}', '{"jobs": [{}]}',
    '{"drafts": [null]}', '{"adopt": [1, 2]}', '{"request_id": ["x"]}', '{"request_id": "nobody"}',
    '{"adopt": ["nobody"]}', "\x00", "{" * 5000, '{"trees": [{"base": NaN}]}', json.dumps({"adopt": ["x" * 10**5]}),
)  # fmt: skip
HUGE = 10**9


@pytest.mark.parametrize("mailbox", MAILBOXES)
def test_garbage_is_dropped_and_the_worker_lives(
    cluster: Cluster, deployment: Deployment, alone: Alone, mailbox: str
) -> None:
    before = cluster.status().processes
    role = {"settle": "control"}.get(mailbox, mailbox.partition(":")[0])
    tracebacks = cluster.log(role).count("Traceback")
    request = GenerateRequest(prompt="Amid noise", raw=True, max_tokens=60, seed=5, temperature=0.9)
    stream = cluster.stream(request).read(until=5)
    for item in GARBAGE:
        _put(deployment, mailbox, item)
    assert stream.read().tokens == alone(request)
    wait_for(lambda: deployment.mailboxes.waiting(mailbox) == 0, limit_s=20.0, what="the mailbox to be empty")
    assert cluster.status().processes == before
    assert cluster.log(role).count("Traceback") == tracebacks


def test_false_mail_about_a_running_sequence_changes_nothing(
    cluster: Cluster, deployment: Deployment, alone: Alone
) -> None:
    _caught_up(cluster, deployment)
    before = cluster.status().processes
    complaints = {role: _complaints(cluster, role) for role in ("verify", "draft", "fuse")}
    request = GenerateRequest(prompt="Lied about", raw=True, max_tokens=160, seed=6, temperature=0.9)
    stream = cluster.stream(request).read(until=5)
    with _Liar(deployment, stream):
        stream.read()
    assert stream.tokens == alone(request)
    assert cluster.status().processes == before
    # They were read, every one of them, and none was more than the handlers can take.
    assert {role: _complaints(cluster, role) for role in complaints} == complaints
    following = GenerateRequest(prompt="After the liar", raw=True, max_tokens=40)
    assert cluster.stream(following).read().tokens == alone(following)


class _Liar:
    """A thread that posts false mail about one sequence to every mailbox, for as long as the block lasts."""

    def __init__(self, deployment: Deployment, stream: Stream) -> None:
        self._deployment = deployment
        self._stream = stream
        self._prompt = deployment.requests.snapshot(stream.id).record.prompt_ids
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._lie)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _lie(self) -> None:
        while not self._stopping.is_set():
            tokens = list(self._stream.tokens)
            base = len(self._prompt) + len(tokens)
            for wrong_base in (base, base + 1, base + 2, base - 1, 1, HUGE):
                for tree in self._trees(wrong_base):
                    self._put("verify:verify-1", ToVerifier(trees=(tree, tree)))
                for draft in self._drafts(wrong_base):
                    self._put("fuse", ToFuser(drafts=(draft, draft)))
                for job in self._jobs(tokens, base, wrong_base):
                    self._put("draft:draft-1", ToDrafter(jobs=(job, job)))
                    self._put("fuse", ToFuser(jobs=(job, job)))
            self._put("verify:verify-1", ToVerifier(adopt=(self._stream.id, "nobody", "")))
            self._stopping.wait(0.02)

    def _put(self, mailbox: str, message: Mail) -> None:
        _put(self._deployment, mailbox, message.json())

    def _trees(self, base: int) -> tuple[TreeMessage, ...]:
        id_ = self._stream.id
        return (
            _tree(id_, base, [1, 2, 3], [0, 1, 2]),  # well formed and wrong
            _tree(id_, base, [HUGE, -1], [0, 0]),  # tokens outside the vocabulary
            _tree(id_, base, [1, 2], [0, 5]),  # a parent that comes later
            _tree(id_, base, [1, 2], [0, -1]),
            _tree(id_, base, [1], [0], survival=[-0.5]),
            _tree(id_, base, [1], [0], survival=[1e300]),
            _tree(id_, base, [1, 2], [0, 1], survival=[0.1, 0.9]),  # a child likelier than its parent
            _tree(id_, base, [5] * 20, [0] * 20),  # the same token twenty times
            _tree(id_, base, list(range(1, 201)), list(range(200))),  # too long
            _tree(id_, base, [1], [0], proposers=[()]),
            _tree(id_, base, [1], [], survival=[], proposers=[]),
            _tree("nobody", base, [1], [0]),
        )

    def _drafts(self, base: int) -> tuple[Draft, ...]:
        def draft(**changes: Any) -> Draft:
            sound = {"drafter": "twin", "tokens": (1, 2), "parents": (0, 1), "confidences": (0.9, 0.9)}
            return Draft(request_id=self._stream.id, base=base, **{**sound, **changes})

        return (
            draft(tokens=(HUGE, -7)),
            draft(confidences=(-1e300, 1e300)),
            draft(parents=(9, 9)),
            draft(tokens=tuple(range(500)), parents=tuple(range(500)), confidences=(0.5,) * 500),
            draft(drafter="target"),
            draft(drafter="unknown"),
            draft(confidences=()),
        )

    def _jobs(self, tokens: list[int], base: int, wrong_base: int) -> tuple[DraftJob, ...]:
        def job(**changes: Any) -> DraftJob:
            sound = {
                "request_id": self._stream.id, "verifier": "verify:verify-1", "fuser": "fuse", "base": base, "start": 0,
                "tokens": (*self._prompt, *tokens), "prompt_length": len(self._prompt), "max_draft_tokens": 4,
                "drafters": ("twin",), "sampling": Sampling(), "due_s": time.time() + 0.2,
            }  # fmt: skip
            return DraftJob(**{**sound, **changes})

        return (
            job(tokens=(HUGE,) * base),
            job(base=wrong_base, start=wrong_base - 1, tokens=(1,)),
            job(base=wrong_base, start=0, tokens=()),
            job(prompt_length=HUGE),
            job(drafters=("nobody",)),
            job(fuser="draft:draft-1", max_draft_tokens=1),
            job(fuser="draft:draft-1", base=wrong_base, start=0, tokens=(), state="no base64"),
            job(fuser="nobody", state="AAAA"),
            job(sampling=Sampling(temperature=1.0, seed=1)),
            job(verifier="verify:nobody"),
            job(is_last=True),
            job(request_id="nobody", tokens=(1,) * base),
            job(max_draft_tokens=64),
        )


def test_the_tick_writes_the_policy_and_verifiers_follow(cluster: Cluster, deployment: Deployment) -> None:
    request = GenerateRequest(prompt="How much is drafted", raw=True, max_tokens=60, temperature=1.0)
    seeds = count(100)

    def drafted() -> int:
        """Make drafts of a text that no process has seen."""
        unseen = request.model_copy(update={"seed": next(seeds)})
        return int(cluster.stream(unseen).read().result["speculation"]["drafted"])

    wait_for(drafted, what="a text worth drafting for")
    beat = cluster.signal("beat", signal.SIGSTOP)  # no tick changes what is written now
    try:
        silent = Policy(version=deployment.nodes.policy().version + 1000, max_draft_tokens=0)
        wait_for(lambda: deployment.nodes.set_policy(silent), what="the policy to be written")
        time.sleep(2 * cluster.settings().lease_s / 4 + 0.5)
        assert drafted() == 0
        assert not deployment.nodes.set_policy(silent.model_copy(update={"max_draft_tokens": 3})), "no newer version"
    finally:
        os.kill(beat, signal.SIGCONT)
    grown = wait_for(lambda: _newer(deployment, silent.version + 1), what="a tick")
    assert grown.max_draft_tokens <= 1, "a little at first"
    wait_for(lambda: deployment.nodes.policy().max_draft_tokens >= 2, what="further ticks")


def _tree(
    request_id: str,
    base: int,
    tokens: list[int],
    parents: list[int],
    survival: list[float] | None = None,
    proposers: list[tuple[str, ...]] | None = None,
) -> TreeMessage:
    return TreeMessage(
        request_id=request_id,
        base=base,
        tokens=tuple(tokens),
        parents=tuple(parents),
        survival=tuple([0.9] * len(tokens) if survival is None else survival),
        proposers=tuple([("twin",)] * len(tokens) if proposers is None else proposers),
    )


def _newer(deployment: Deployment, version: int) -> Policy | None:
    policy = deployment.nodes.policy()
    return policy if policy.version >= version else None


def _caught_up(cluster: Cluster, deployment: Deployment) -> None:
    """Wait until the workers have read all mail of other tests, since they complain of that, too."""
    queues = [mailbox_queue(deployment.settings, mailbox) for mailbox in MAILBOXES]
    with closing(connect(cluster.redis_url)) as client:
        wait_for(lambda: not any(client.llen(queue) for queue in queues), 30.0, "doorbells to be answered")
    time.sleep(0.3)  # the last one may have been taken a moment ago


def _complaints(cluster: Cluster, role: str) -> int:
    return cluster.log(role).count("dropped") + cluster.log(role).count("Traceback")


def _put(deployment: Deployment, mailbox: str, item: str) -> None:
    """Put an item, which need not be a message, and ring as `Deployment.post` does."""
    if deployment.mailboxes.post(mailbox, [item]):
        deployment.ring(mailbox)
