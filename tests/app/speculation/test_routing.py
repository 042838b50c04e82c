"""Test routing: the verifier, the drafters' nodes, and the drafters of a round, over a simulated mix of domains."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.messages import Record
from app.request import SpeculationBounds
from app.speculation.drafter_pool import DrafterPool, hosts
from app.speculation.routing import (
    LENGTH_DECAY,
    MAX_REQUESTS,
    SHORT,
    CosineRouting,
    FixedRouting,
    MatrixEntry,
    PaceRouting,
    Route,
    Router,
    chosen,
    guesses,
    is_short,
    same_tokens,
    serving,
    verifier,
)
from app.state import Tree
from app.store.protocol import Node
from tests import fakes

DOMAINS = ("code", "prose", "qa")
NODES = {name: f"draft:{name}" for name in DOMAINS}
DEPTH, GOOD, BAD = 6, 0.85, 0.3

STRATEGIES = {
    "pace": PaceRouting,
    "cosine": lambda: CosineRouting(same_tokens),
    "all": FixedRouting,
    "first": lambda: FixedRouting(1),
}


def build(kind: str = "pace", most: int = 2) -> Router:
    return Router(STRATEGIES[kind](), most)


class Mix:
    """Requests of a domain on a router; drafters of another domain are mostly wrong."""

    def __init__(self, router: Router, pool: DrafterPool | None = None) -> None:
        self.router = router
        self.pool = pool or DrafterPool(NODES, ("lookup",), core_share=1.0)

    def round(self, record: Record, domain: str, length: int, rng: random.Random) -> tuple[Route, int]:
        """Ask, draft, verify and learn; return the route and the number of committed tokens."""
        router = self.router
        route = router.route(record, length, self.pool, 8)
        router.record_asked(record, route)
        text = [rng.randrange(50_000) for _ in range(DEPTH + 1)]
        right = {name: self._right(name == domain, rng) for name in route.homes}
        tree = tree_of({name: [*text[:count], -1][:DEPTH] for name, count in right.items()})
        committed = text[: max(right.values(), default=0) + 1]
        router.update(record.id, tree, committed, dict.fromkeys(right, 0.8))
        return route, len(committed)

    def run(self, request_id: str, domain: str, rounds: int = 30) -> list[list[str]]:
        """Return the model drafters of each round."""
        record = fakes.record([1, 2, 3], request_id=request_id)
        rng, length, asked = random.Random(request_id), len(record.prompt_ids), []
        for _ in range(rounds):
            route, committed = self.round(record, domain, length, rng)
            assert "lookup" in route.drafters, "model-free ones always draft"
            length += committed
            asked.append(list(route.homes))
        self.router.remove(request_id)
        return asked

    def _right(self, is_good: bool, rng: random.Random) -> int:
        p = GOOD if is_good else BAD
        return next((i for i in range(DEPTH) if rng.random() > p), DEPTH)


def tree_of(chains: dict[str, Sequence[int]]) -> Tree:
    """Merge chains where they agree, level by level, so that parents come before children."""
    nodes: dict[tuple[int, ...], list[str]] = {}
    for depth in range(1, DEPTH + 1):
        for name, chain in chains.items():
            if len(chain) >= depth:
                nodes.setdefault(tuple(chain[:depth]), []).append(name)
    index = {path: i for i, path in enumerate(nodes, start=1)}
    parents = [index.get(path[:-1], 0) for path in nodes]
    return Tree([path[-1] for path in nodes], parents, [0.5] * len(nodes), [tuple(names) for names in nodes.values()])


def test_the_same_requests_are_routed_the_same_way() -> None:
    for kind in STRATEGIES:
        runs = [[Mix(build(kind)).run(f"r{i}", "qa") for i in range(3)] for _ in range(2)]
        assert runs[0] == runs[1]


def test_a_lone_drafter_is_no_choice_and_no_cost() -> None:
    router = build("cosine")
    mix = Mix(router, DrafterPool({"code": "draft:1"}, ("lookup",)))
    assert mix.run("r", "code", rounds=3) == [["code"]] * 3
    assert not router.asked_rounds and not router.is_scoring


def test_a_request_that_names_drafters_gets_no_others() -> None:
    router, pool = build(), DrafterPool(NODES, ("lookup",))
    for names, wanted in ((("prose",), {"prose"}), (("lookup",), set()), ((), set())):
        record = fakes.record([1, 2], request_id=str(names), speculation=SpeculationBounds(drafters=names))
        route = router.route(record, 2, pool, 8)
        assert set(route.homes) == wanted
        assert set(route.drafters) == set(names)


def test_pace_takes_the_drafters_on_other_cores_within_the_bounds() -> None:
    away = DrafterPool(NODES, ("lookup",), core_share=0.0)
    for most, longest in ((1, 1), (2, 2), (8, 3)):
        router = build(most=most)
        rounds = [names for i in range(9) for names in Mix(router, away).run(f"r{i}", "qa", rounds=3)]
        assert {len(names) for names in rounds} == {longest}
        assert {name for names in rounds for name in names} == set(DOMAINS), "not all requests have the same"
    assert len(build(most=8).route(fakes.record([1, 2]), 2, away, 1).homes) == 1, "the policy's bound"
    mixed = DrafterPool(NODES, ("lookup",), core_share=0.5, away=frozenset({NODES["prose"]}))
    assert Mix(build(), mixed).run("r", "qa", rounds=1) == [["prose"]]


def test_pace_keeps_one_drafter_on_the_verifiers_own_cores() -> None:
    router, record = build(), fakes.record([1, 2], request_id="r")
    pools = [DrafterPool({name: NODES[name] for name in order}) for order in (DOMAINS, DOMAINS[::-1])]
    assert [[*router.route(record, i, pool, 8).homes] for i, pool in enumerate(pools)] == [["code"]] * 2
    assert [*router.route(record, 3, DrafterPool({"qa": "draft:qa", "prose": "draft:prose"}), 8).homes] == ["qa"]


class TestNodes:
    """Test several nodes that host the same drafter."""

    HOSTS = ("draft:1", "draft:2", "draft:3")

    def pool(self, *boxes: str, waiting: dict[str, int] | None = None) -> DrafterPool:
        return DrafterPool({"code": boxes[0]}, (), hosts={"code": boxes}, waiting=waiting or {})

    def home(self, router: Router, request_id: str, length: int, pool: DrafterPool) -> str:
        record = fakes.record([1, 2], request_id=request_id)
        return router.route(record, length, pool, 8).homes["code"]

    def test_a_sequence_stays_at_its_node_until_the_node_dies(self) -> None:
        router = build()
        assert self.home(router, "r", 2, self.pool(*self.HOSTS, waiting={"draft:1": 3, "draft:3": 1})) == "draft:2"
        assert self.home(router, "r", 3, self.pool(*self.HOSTS, waiting={"draft:2": 9})) == "draft:2"
        assert self.home(router, "r", 4, self.pool("draft:1", "draft:3", waiting={"draft:1": 1})) == "draft:3"
        assert self.home(router, "r", 5, self.pool(*self.HOSTS)) == "draft:3", "the node is back, its cache is not"

    def test_a_dead_node_is_not_asked_again_at_the_same_length(self) -> None:
        router = build()
        first = self.home(router, "r", 2, self.pool("draft:1", "draft:2"))
        other = {"draft:1": "draft:2", "draft:2": "draft:1"}[first]
        assert self.home(router, "r", 2, self.pool(other)) == other

    def test_simultaneous_requests_are_spread_over_nodes(self) -> None:
        router, pool = build(), self.pool(*self.HOSTS)
        assert Counter(self.home(router, str(i), 2, pool) for i in range(9)) == dict.fromkeys(self.HOSTS, 3)
        for i in range(9):
            router.remove(str(i))
        assert self.home(router, "r", 2, pool) == "draft:1"


@pytest.mark.parametrize(
    ("kind", "firsts"), [("all", list(DOMAINS)), ("first", ["code"])], ids=["union", "first drafter"]
)
def test_fixed_baselines_ask_all_or_the_first(kind: str, firsts: list[str]) -> None:
    assert Mix(build(kind)).run("r", "qa", rounds=5) == [firsts] * 5


def test_cosine_explores_while_little_is_accepted_and_then_exploits() -> None:
    mix = Mix(build("cosine", most=1))
    record = fakes.record([1, 2, 3], request_id="r")
    rng, length, recent, asked, lengths = random.Random(1), 60, 0.0, [], []
    for _ in range(60):
        lengths.append(recent)
        route, committed = mix.round(record, "qa", length, rng)
        recent = LENGTH_DECAY * (recent or committed) + (1.0 - LENGTH_DECAY) * committed
        length += committed
        asked.append(next(iter(route.homes)))
    exploring = [name for name, recent in zip(asked, lengths, strict=True) if recent < SHORT]
    assert len(set(exploring)) == 3, "the least tried ones"
    exploiting = [name for name, recent in list(zip(asked, lengths, strict=True))[20:] if recent >= SHORT]
    assert exploiting.count("qa") > 0.9 * len(exploiting) > 0


def test_the_matrix_has_rows_of_the_latest_requests_only() -> None:
    routing, homes, pool = CosineRouting(same_tokens), dict(NODES), DrafterPool(NODES)
    for i in range(MAX_REQUESTS + 3):
        routing.choose(str(i), homes, pool, 2)
    assert len(routing._rows) == MAX_REQUESTS and "0" not in routing._rows
    routing.remove(str(MAX_REQUESTS))
    assert len(routing._rows) == MAX_REQUESTS - 1


HASH = "abc"


def node(name: str, kind: str = "draft", **info) -> Node:
    return Node(kind, name, "owner", 0.0, info)


def drafting(name: str, *names: str, waiting: int = 0, tokenizer: str = HASH) -> Node:
    return node(name, drafters=list(names), waiting=waiting, tokenizer=tokenizer)


def test_the_verifier_with_the_fewest_requests_is_chosen():
    live = [Node("verify", name, f"{name}'s", 0.0, {}) for name in ("v1", "v3", "v2")]
    assert verifier(live, {"v1's": 3, "v3's": 1, "v2's": 1}).name == "v2"


def test_a_verifier_that_holds_nothing_yet_is_idle():
    live = [Node("verify", name, f"{name}'s", 0.0, {}) for name in ("v1", "v2")]
    assert verifier(live, {"v1's": 1}).name == "v2"


def test_without_a_live_verifier_none_is_chosen():
    assert verifier([], {}) is None


def test_every_drafter_has_its_nodes_the_least_busy_first():
    live = [drafting("d1", "small", "tiny", waiting=4), drafting("d2", "small"), drafting("d3", "other", waiting=9)]
    assert hosts(live, HASH) == {
        "small": ("draft:d2", "draft:d1"),
        "tiny": ("draft:d1",),
        "other": ("draft:d3",),
    }


def test_a_drafter_with_another_tokenizer_is_not_asked():
    live = [drafting("d1", "small", tokenizer="xyz"), node("d2", drafters=["dumb"]), drafting("d3", "small", waiting=5)]
    assert hosts(live, HASH) == {"small": ("draft:d3",)}


def test_a_node_that_reports_no_drafters_has_none():
    assert hosts([node("d1", tokenizer=HASH)], HASH) == {}


def test_one_drafter_on_two_nodes_is_listed_once_each():
    live = [drafting("d1", "small", "small"), drafting("d2", "small")]
    assert hosts(live, HASH) == {"small": ("draft:d1", "draft:d2")}


entries = st.dictionaries(
    st.uuids().map(str), st.builds(MatrixEntry, st.floats(0.0, 1.0), st.integers(0, 9)), min_size=1, max_size=6
)


@given(entries, st.integers(1, 8), st.booleans())
def test_at_least_one_drafter_is_chosen_none_twice_and_within_the_bound(listed, most, is_exploring):
    found = chosen(listed, most, is_exploring=is_exploring)
    assert len(found) == len(set(found)) == min(most, len(listed))
    assert set(found) <= listed.keys()


def test_cosine_explores_the_least_tried_and_exploits_the_best():
    listed = {"best": MatrixEntry(0.9, 9), "new": MatrixEntry(0.1, 0), "old": MatrixEntry(0.5, 5)}
    assert chosen(listed, 1, is_exploring=True) == ["new"]
    assert chosen(listed, 2, is_exploring=True) == ["new", "best"]
    assert chosen(listed, 1, is_exploring=False) == ["best"]
    assert chosen(listed, 2, is_exploring=False) == ["best", "old"]


def test_nothing_accepted_yet_is_short():
    assert is_short(None) and is_short(1.5) and not is_short(3.0)


#        root -> 1 (a, b) -> 2 (a) -> 3 (a)
#             -> 9 (c)    -> 8 (b)
TREE = Tree([1, 9, 2, 8, 3], [0, 0, 1, 1, 3], [0.9, 0.1, 0.8, 0.2, 0.7], [("a", "b"), ("c",), ("a",), ("b",), ("a",)])


def test_a_drafter_is_rated_by_its_own_likeliest_token_at_each_position():
    found = [guesses(TREE, name, 9) for name in ("a", "b", "c", "silent")]
    assert found == [{0: 1, 1: 2, 2: 3}, {0: 1, 1: 8}, {0: 9}, {}]
    assert guesses(TREE, "a", 2) == {0: 1, 1: 2}


def test_a_drafter_is_rated_behind_tokens_of_others_that_it_went_on_from():
    #        root -> 1 (a) -> 2 (a, b) -> 3 (b)
    #             -> 9 (b)           -> 7 (b)
    comb = Tree(
        [1, 9, 2, 3, 7], [0, 0, 1, 3, 3], [0.9, 0.4, 0.8, 0.7, 0.1], [("a",), ("b",), ("a", "b"), ("b",), ("b",)]
    )
    assert guesses(comb, "b", 9) == {0: 9, 1: 2, 2: 3}
    assert guesses(comb, "a", 9) == {0: 1, 1: 2}


def test_a_verifier_serves_requests_of_its_tokenizer_and_its_target() -> None:
    def node(name: str, **info: str) -> Node:
        return Node("verify", name, f"owner of {name}", 0.0, dict(info))

    live = [
        node("a", tokenizer="t", target="1"),
        node("b", tokenizer="t", target="2"),
        node("c", tokenizer="u"),
        node("old"),
    ]
    assert [one.name for one in serving(live, "t")] == ["a", "b", "old"]
    assert [one.name for one in serving(live, "t", "2")] == ["b"]
    assert serving(live, "t", "3") == []
