"""Discrete events: drafters and verifiers on machines of their own, in simulated seconds, over a log of real drafts.

A drafter node takes all jobs that wait as one batch, as a mailbox's attendant does; so does a verifier with all
sequences that are ready. A job and its answer take a hop each; sharing each token takes two more a token. Lengths are
chosen by the real `ask`, trees cut by the real `cut`. No randomness but the order of texts, drawn from the seed.
"""

import json
import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from app.costs import CostTable, DraftCosts
from app.expectation import Expectations
from app.stages.ask import Candidate, ask
from app.stages.schedule import cut
from app.state import Tree
from bench.simulate_log import DEPTH, Guess, Log
from bench.simulate_policies import Policy, tree_of

MAX_ROWS = 512  # of a verifier's step


@dataclass(frozen=True, slots=True)
class Setting:
    """The machines: how many sequences at once, how many verifiers, how slow one is beside the measured, a hop."""

    streams: int = 8
    verifiers: int = 1
    slowdown: float = 1.0
    hop_s: float = 0.0005
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy came to. Busy parts are of the whole time."""

    stream_tokens_per_s: float  # mean over texts of tokens / the time from its start to its end
    tokens_per_s: float  # of all verifiers together
    accepted_length: float
    draft_tokens: float  # verified, a round
    verifier_busy: float
    drafter_busy: float  # the busiest node's
    seconds: float


@dataclass(slots=True)
class Stream:
    """One of the sequences that run at once."""

    text: int
    at: int = 1  # tokens committed: the prompt gave the first one
    started_s: float = 0.0
    asked: tuple[str, ...] = ()
    depth: int = 0
    missing: int = 0  # drafters that have not answered
    said: dict[str, Guess] = field(default_factory=dict)
    tree: Tree = field(default_factory=Tree)
    asked_s: float = 0.0


@dataclass(slots=True)
class Node:
    """A drafter's machine."""

    name: str
    waiting: list[Stream] = field(default_factory=list)
    is_busy: bool = False
    busy_s: float = 0.0


def simulate(log: Log, policy: Policy, setting: Setting) -> Outcome:
    """Run every text of the log once under the policy. The policy learns: use a fresh one each time."""
    return _Simulation(log, policy, setting).run()


class _Simulation:
    def __init__(self, log: Log, policy: Policy, setting: Setting) -> None:
        self.log, self.policy, self.setting = log, policy, setting
        points = json.loads(log.costs)["points"]
        self.costs = CostTable({rows: seconds * setting.slowdown for rows, seconds in points})
        self.draft_costs = DraftCosts(2.0 * setting.hop_s)
        self.expectations = Expectations()
        self.nodes = {name: Node(name) for name in policy.drafters}
        self.ready: deque[Stream] = deque()
        self.idle = setting.verifiers
        order = [i for i, text in enumerate(log.texts) if len(text.tokens) > 1]
        random.Random(setting.seed).shuffle(order)
        self.texts = deque(order)
        self.now_s = 0.0
        self.running = 0
        self.events: list[tuple[float, int, object]] = []
        self._order = count()
        self.tokens = self.rounds = self.verified = 0
        self.rates: list[float] = []
        self.verifier_s = 0.0

    def run(self) -> Outcome:
        first = [Stream(self.texts.popleft()) for _ in range(min(self.setting.streams, len(self.texts)))]
        self.running = len(first)
        self._ask(first)
        while self.events:
            self.now_s, _, happened = heappop(self.events)
            happened()  # type: ignore[operator]
            self._verify()
        total_s = max(self.now_s, 1e-9)
        return Outcome(
            sum(self.rates) / max(1, len(self.rates)),
            self.tokens / total_s,
            self.tokens / max(1, self.rounds),
            self.verified / max(1, self.rounds),
            self.verifier_s / total_s / self.setting.verifiers,
            max((node.busy_s / total_s for node in self.nodes.values()), default=0.0),
            total_s,
        )

    def _after(self, seconds: float, happened: object) -> None:
        heappush(self.events, (self.now_s + seconds, next(self._order), happened))

    def _ask(self, streams: list[Stream]) -> None:
        """A round begins for these: how much, of whom."""
        depths = self._depths(streams)
        for stream, depth in zip(streams, depths, strict=True):
            stream.depth, stream.tree, stream.said, stream.asked_s = depth, Tree(), {}, self.now_s
            stream.asked = self.policy.choose(stream.text, depth) if depth else ()
            stream.missing = len(stream.asked)
            for name in stream.asked:
                self._after(self.setting.hop_s, lambda s=stream, n=name: self._arrive(s, n))
            if not stream.missing:
                self._after(0.0, lambda s=stream: self._fuse(s))

    def _depths(self, streams: list[Stream]) -> list[int]:
        room = [len(self.log.texts[s.text].tokens) - s.at - 1 for s in streams]
        if not self.policy.speculates:
            return [0] * len(streams)
        limits = [max(0, min(DEPTH, left)) for left in room]
        if self.policy.length is not None:
            return [min(self.policy.length, limit) for limit in limits]
        others = self.running - len(streams)
        candidates = [
            Candidate(self.expectations.of(str(s.text), "public"), limit, 0.0, left)
            for s, limit, left in zip(streams, limits, room, strict=True)
        ]
        busy_s = self.costs.seconds(others) if others > 0 else 0.0
        depths = ask(candidates, self.costs, self.draft_costs, busy_s=busy_s, share=0.0)
        for candidate, depth in zip(candidates, depths, strict=True):
            candidate.expectation.asked(depth)
        return depths

    def _arrive(self, stream: Stream, name: str) -> None:
        node = self.nodes[name]
        node.waiting.append(stream)
        self._draft(node)

    def _draft(self, node: Node) -> None:
        """An idle node takes what waits."""
        if node.is_busy or not node.waiting:
            return
        batch, node.waiting = node.waiting, []
        shares = self.policy.shares_tokens and any(len(stream.asked) > 1 for stream in batch)
        token_s = _per_token(self.log.drafters[node.name].token_s, len(batch))
        took_s = max(stream.depth for stream in batch) * (token_s + (2.0 * self.setting.hop_s if shares else 0.0))
        node.is_busy = True
        node.busy_s += took_s
        self._after(took_s, lambda: self._drafted(node, batch))

    def _drafted(self, node: Node, batch: list[Stream]) -> None:
        node.is_busy = False
        for stream in batch:
            self._after(self.setting.hop_s, lambda s=stream: self._answer(s, len(batch)))
        self._draft(node)

    def _answer(self, stream: Stream, batch: int) -> None:
        stream.missing -= 1
        if not stream.missing:
            self.draft_costs.observe(batch, stream.depth, self.now_s - stream.asked_s)
            self._fuse(stream)

    def _fuse(self, stream: Stream) -> None:
        if stream.depth:
            at = stream.at
            stream.tree, stream.said = tree_of(self.policy, self.log, stream.text, at, stream.asked, stream.depth)
        self.ready.append(stream)

    def _verify(self) -> None:
        """An idle verifier takes all that is ready: when nothing else happens at this very moment."""
        if not self.ready or not self.idle or (self.events and self.events[0][0] <= self.now_s):
            return
        self.idle -= 1
        batch, self.ready = [*self.ready], deque()
        uncut = [stream.tree for stream in batch]
        kept = cut(uncut, len(batch), self.costs, MAX_ROWS)
        for stream, nodes in zip(batch, kept, strict=True):
            stream.tree = stream.tree.cut(nodes)
        took_s = self.costs.seconds(len(batch) + sum(kept))
        self.verifier_s += took_s
        self._after(took_s, lambda: self._commit(batch, uncut))

    def _commit(self, batch: list[Stream], uncut: list[Tree]) -> None:
        self.idle += 1
        going_on = []
        for stream, tree in zip(batch, uncut, strict=True):
            text = self.log.texts[stream.text].tokens
            committed = text[stream.at : stream.at + 1 + _right(stream.tree, text[stream.at :])]
            self.rounds += 1
            self.verified += len(stream.tree)
            self.tokens += len(committed)
            if stream.depth:
                self.expectations.of(str(stream.text), "public").learn(tree, committed)
                self.policy.learn(stream.text, stream.said, committed)
            stream.at += len(committed)
            if stream.at < len(text):
                going_on.append(stream)
            else:
                going_on += self._next(stream)
        if going_on:
            self._ask(going_on)

    def _next(self, ended: Stream) -> list[Stream]:
        """A text ended: the next one takes its place."""
        self.rates.append((ended.at - 1) / max(1e-9, self.now_s - ended.started_s))
        self.expectations.forget(str(ended.text))
        if self.texts:
            return [Stream(self.texts.popleft(), started_s=self.now_s)]
        self.running -= 1
        return []


def _right(tree: Tree, text: tuple[int, ...]) -> int:
    """How many tokens of the text the tree holds from its root on, at most all but the last."""
    node = right = 0
    while right < len(text) - 1:
        found = (i for i, parent in enumerate(tree.parents, 1) if parent == node and tree.tokens[i - 1] == text[right])
        node = next(found, 0)
        if not node:
            break
        right += 1
    return right


def _per_token(token_s: dict[int, float], batch: int) -> float:
    """Of the nearest measured batch that is not smaller; beyond the largest, in proportion."""
    larger = [size for size in sorted(token_s) if size >= batch]
    if larger:
        return token_s[larger[0]]
    most = max(token_s)
    return token_s[most] * batch / most
