"""Test drafters on four nodes that guess each token together: the same text, whichever node dies, freezes or lies."""

import os
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

from app.messages import FUSE, ToDrafter, ToFuser, TokenGuess, mailbox_of
from app.request import GenerateRequest
from tests.workers.cluster import Cluster, running, wait_for
from tests.workers.conftest import Alone

NAMES = ("north", "east", "south", "west")
TOKENS = 160


@pytest.fixture(scope="module")
def four(tiny_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run the tiny target with four copies of its drafter, each on a node of its own, as CoSine's plan has it."""
    folder = tmp_path_factory.mktemp("drafters")
    copies = [shutil.copytree(tiny_environ["PACELINE_DRAFTERS"], folder / name) for name in NAMES]
    environ = {
        **tiny_environ,
        "PACELINE_PLAN": "cosine",
        "PACELINE_DRAFTERS": ",".join(map(str, copies)),
    }
    with running(f"four-{os.getpid()}", tmp_path_factory.mktemp("state"), environ) as cluster:
        yield cluster


def request(seed: int) -> GenerateRequest:
    return GenerateRequest(prompt="Together", raw=True, max_tokens=TOKENS, temperature=0.8, seed=seed)


def shared(cluster: Cluster) -> dict[str, int]:
    """Return how many tokens each drafter node has guessed with others."""
    return {name: node["shared_guesses"] for name, node in cluster.status().nodes.items() if name.startswith("draft-")}


def test_four_nodes_guess_each_token_together(four: Cluster, alone: Alone) -> None:
    wait_for(lambda: len(shared(four)) == len(NAMES), what="four drafter nodes")
    before = shared(four)
    assert cooperate(four, alone, seed=1) >= 3
    wait_for(lambda: all(now > before[name] for name, now in shared(four).items()), what="all nodes' counts")


@pytest.mark.parametrize(
    ("role", "number", "lost"),
    [
        ("draft", signal.SIGKILL, slice(0, None, 2)),
        pytest.param("draft", signal.SIGSTOP, slice(1, None, 2), marks=pytest.mark.extended),
        pytest.param("fuse", signal.SIGKILL, slice(1), marks=pytest.mark.extended),
        pytest.param("fuse", signal.SIGSTOP, slice(1), marks=pytest.mark.extended),
        ("verify", signal.SIGKILL, slice(1)),
    ],
)
def test_the_text_stays_when_nodes_are_lost(four: Cluster, alone: Alone, role: str, number: int, lost: slice) -> None:
    """Two drafter nodes of four are lost at once, the other two by another cause; then fuser and verifier."""
    asked = request(seed=10 + number)
    stream = four.stream(asked).read(until=TOKENS // 4)
    pids = four.status().processes[role][lost]
    for pid in pids:
        os.kill(pid, number)
    try:
        assert stream.read().tokens == alone(asked)
        print(f"{role} {number}: longest gap {stream.longest_gap_s:.2f} s")
    finally:
        if number == signal.SIGSTOP:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    four.await_ready()
    wait_for(lambda: len(shared(four)) == len(NAMES), what="four drafter nodes again")
    assert any(cooperate(four, alone, seed=10 * number + i) >= 3 for i in range(20)), "all work together again"


def test_a_lying_node_changes_no_text(four: Cluster, alone: Alone) -> None:
    """Guesses and paths of any content go to the fuser and to the nodes, for the request under way."""
    asked = request(seed=99)
    stream = four.stream(asked).read(until=8)
    with_mail = four.deployment()
    try:
        for base in range(16, TOKENS):
            lies = [_lie(stream.id, base, token) for token in (-7, 3, 10**9)]
            with_mail.post(FUSE, [ToFuser(guesses=tuple(lies))])
            path = f'{{"paths":[{{"request_id":"{stream.id}","base":{base},"tokens":[{base % 50}],"survival":1.0}}]}}'
            box = mailbox_of("draft", f"draft-{NAMES[base % 4]}")
            with_mail.post(box, [ToDrafter.read(path)])
            time.sleep(0.002)
    finally:
        with_mail.close()
    assert stream.read().tokens == alone(asked)
    assert cooperate(four, alone, seed=100) >= 1


def cooperate(cluster: Cluster, alone: Alone, seed: int) -> int:
    """Run a request to its end, and check its text; return how many drafters' guesses were accepted."""
    asked = request(seed)
    stream = cluster.stream(asked).read()
    assert stream.tokens == alone(asked)
    by_drafter = stream.result["speculation"]["by_drafter"]
    assert set(by_drafter) <= set(NAMES)
    return sum(own["accepted"] > 0 for own in by_drafter.values())


def _lie(request_id: str, base: int, token: int) -> TokenGuess:
    return TokenGuess(
        request_id=request_id,
        base=base,
        step=0,
        drafter=NAMES[base % 4],
        token=token,
        confidence=1.0,
        second=0,
        second_confidence=0.0,
    )
