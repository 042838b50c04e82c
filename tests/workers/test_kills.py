"""Test killed and frozen processes: a client's stream goes on with the same text."""

import os
import signal
import subprocess
import threading
import time

import pytest

from app.request import GenerateRequest, SpeculationBounds
from tests.workers.cluster import RECOVERY_S, Cluster, wait_for
from tests.workers.conftest import Alone
from workers.deployment import Deployment

TOKENS = 240
KILL_AT = 50
ROLES = ("draft", "fuse", "beat", "control", "web", "redis")  # the verifier has a test of its own


def _request(seed: int, max_tokens: int = TOKENS) -> GenerateRequest:
    # every test a seed of its own: what the suffix drafter has seen before would end the stream too soon
    return GenerateRequest(prompt="Tell me", raw=True, max_tokens=max_tokens, temperature=0.8, seed=seed)


@pytest.mark.parametrize("role", ROLES)
def test_a_stream_keeps_its_text_when_a_process_is_killed(cluster: Cluster, alone: Alone, role: str) -> None:
    request = _request(seed=100 + ROLES.index(role))
    stream = cluster.stream(request).read(until=KILL_AT)
    assert not stream.result
    killed = cluster.signal(role, signal.SIGKILL)
    stream.read()
    recovered_s = cluster.await_restart(role, killed)
    assert stream.tokens == alone(request)
    assert stream.result["token_ids"] == stream.tokens and stream.result["text"] == stream.text
    assert (stream.reconnects > 0) == (role == "web")
    print(f"killed {role}: longest gap {stream.longest_gap_s:.1f} s, ready {recovered_s:.1f} s after the end")


def test_two_streams_survive_the_verifier_twice_in_a_row(cluster: Cluster, alone: Alone) -> None:
    greedy = GenerateRequest(prompt="Again and again", raw=True, max_tokens=TOKENS)
    sampled = _request(seed=120)
    first, second = cluster.stream(greedy), cluster.stream(sampled)
    first.read(until=KILL_AT)
    killed = cluster.signal("verify", signal.SIGKILL)
    cluster.await_restart("verify", killed)
    first.read(until=KILL_AT + 40)
    print(f"killed verify: longest gap {first.longest_gap_s:.1f} s")
    killed = cluster.signal("verify", signal.SIGKILL)
    assert first.read().tokens == alone(greedy)
    assert second.read().tokens == alone(sampled)
    cluster.await_restart("verify", killed)


@pytest.mark.extended
def test_a_frozen_verifier_goes_on_after_waking(cluster: Cluster, alone: Alone) -> None:
    request = _request(seed=130, max_tokens=2 * TOKENS)
    stream = cluster.stream(request).read(until=KILL_AT)
    pid = cluster.signal("verify", signal.SIGSTOP)
    wait_for(lambda: any("verify" in problem for problem in cluster.status().problems), what="its lease to end")
    os.kill(pid, signal.SIGCONT)
    woken = time.monotonic()
    assert stream.read().tokens == alone(request)
    assert cluster.pid("verify") == pid
    print(f"frozen verifier: the stream's end {time.monotonic() - woken:.1f} s after it woke")

    def is_drafted_for(seed: int) -> bool:
        return any(name != "target" for name in cluster.stream(_request(seed)).read().proposers)

    # Drafts took long while it was frozen: on a busy machine it takes a while to see that they no longer do.
    assert any(is_drafted_for(seed) for seed in range(131, 139)), "it has its mailbox back: drafts reach it again"


def test_a_frozen_verifier_loses_its_sequences_and_is_fenced_out(
    cluster: Cluster, deployment: Deployment, alone: Alone
) -> None:
    request = _request(seed=140, max_tokens=300)
    stream = cluster.stream(request).read(until=KILL_AT)
    first = deployment.requests.snapshot(stream.id).owner
    pid = cluster.signal("verify", signal.SIGSTOP)
    other = cluster.start_worker("verify", "verify-2")
    try:
        stream.read(until=150)
        second = deployment.requests.snapshot(stream.id).owner
        os.kill(pid, signal.SIGCONT)
        stream.read()
        assert stream.tokens == alone(request)
        assert first != second == deployment.requests.snapshot(stream.id).owner
        assert stream.longest_gap_s < RECOVERY_S
        wait_for(lambda: _sequences(deployment) == [0, 0], what="both verifiers to have let go")
    finally:
        os.kill(pid, signal.SIGCONT)
        _end(other)


@pytest.mark.extended
def test_plain_decoding_goes_on_while_drafters_die_again_and_again(cluster: Cluster, alone: Alone) -> None:
    request = _request(seed=150)
    stopping = threading.Event()
    killed: set[int] = set()

    def kill() -> None:
        while not stopping.wait(0.05):
            for pid in cluster.status().processes["draft"]:
                if pid not in killed:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)

    killer = threading.Thread(target=kill)
    stream = cluster.stream(request).read(until=5)
    killer.start()
    try:
        stream.read()
    finally:
        stopping.set()
        killer.join()
    assert stream.tokens == alone(request)
    assert killed
    cluster.await_ready()


def test_stopped_verifier_leaves_in_time_and_its_requests_go_on(cluster: Cluster, alone: Alone) -> None:
    request = _request(seed=160)
    stream = cluster.stream(request).read(until=KILL_AT)
    pid = cluster.signal("verify", signal.SIGTERM)
    started = time.monotonic()
    wait_for(lambda: pid not in cluster.status().processes["verify"], limit_s=10.0, what="its end")
    print(f"verifier left {time.monotonic() - started:.1f} s after SIGTERM")
    assert stream.read().tokens == alone(request)
    cluster.await_restart("verify", pid)


@pytest.mark.extended
@pytest.mark.parametrize("role", ["control", "fuse", "beat", "web"])
def test_stopped_idle_process_leaves_in_time(cluster: Cluster, role: str) -> None:
    pid = cluster.signal(role, signal.SIGTERM)
    started = time.monotonic()
    wait_for(lambda: pid not in cluster.status().processes[role], limit_s=10.0, what="its end")
    print(f"{role} left {time.monotonic() - started:.1f} s after SIGTERM")
    cluster.await_restart(role, pid)


@pytest.mark.extended
@pytest.mark.model
def test_the_real_model_gives_the_same_text_while_workers_are_killed(real: Cluster) -> None:
    request = GenerateRequest(prompt="Explain in a few sentences why the sky is blue.", max_tokens=75)
    undisturbed = real.stream(request.model_copy(update={"speculation": SpeculationBounds(enabled=False)})).read()
    stream = real.stream(request)
    for role, at in (("draft", 10), ("fuse", 25), ("beat", 35), ("verify", 45)):
        stream.read(until=at)
        assert not stream.result
        started = time.monotonic()
        killed = real.signal(role, signal.SIGKILL)
        stream.read(until=at + 5)
        print(f"{role} killed: five tokens more after {time.monotonic() - started:.1f} s")
        wait_for(lambda role=role, killed=killed: killed != real.pid(role), what=f"another {role}")
    stream.read()
    assert stream.tokens == undisturbed.tokens and stream.text == undisturbed.text
    print(f"drafted: {stream.result['speculation']['by_drafter']}")
    real.await_ready()


def _sequences(deployment: Deployment) -> list[int]:
    return [node.info["sequences"] for node in deployment.nodes.live("verify")]


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait(30)
