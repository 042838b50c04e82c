"""Test routing over a simulated mix: three drafters, each good in one domain; all random by seeds."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
import redis

from app.messages import Record
from app.request import SpeculationBounds
from app.speculation.drafter_pool import DrafterPool
from app.speculation.drafter_priors import DrafterPriors
from app.speculation.route_scores import LENGTH_DECAY, same_tokens
from app.speculation.route_strategies import CosineRouting, FixedRouting, LearnedRouting, RoundLimits
from app.speculation.router import Route, Router
from app.speculation.routing_policies import SHORT
from app.state import Tree
from app.store.shared_stats import SharedStatsStore, StatsExchange
from tests import fakes

DOMAINS = ("code", "prose", "qa")
NODES = {name: f"draft:{name}" for name in DOMAINS}
DEPTH, GOOD, BAD = 6, 0.85, 0.3

STRATEGIES = {
    "learned": LearnedRouting(),
    "cosine": CosineRouting(same_tokens),
    "all": FixedRouting(),
    "first": FixedRouting(1),
}


def build(kind: str = "learned", most: int = 2) -> Router:
    return Router(STRATEGIES[kind], most)


class Mix:
    """Requests of a domain on a router; drafters of another domain are mostly wrong."""

    def __init__(self, router: Router, pool: DrafterPool | None = None, prices: dict[str, float] | None = None) -> None:
        self.router = router
        self.pool = pool or DrafterPool(NODES, ("lookup",), core_share=1.0)
        self._prices = prices or {}

    def round(self, record: Record, domain: str, length: int, rng: random.Random) -> tuple[Route, int]:
        """Ask, draft, verify and learn; return the route and the number of committed tokens."""
        router = self.router
        route = router.route(
            record, length, self.pool, lambda: (RoundLimits(DEPTH, 8), lambda box: self._prices.get(box, 0.0))
        )
        router.record_asked(record, route)
        text = [rng.randrange(50_000) for _ in range(DEPTH + 1)]
        right = {name: self._right(name == domain, rng) for name in route.homes}
        tree = tree_of({name: [*text[:count], -1][:DEPTH] for name, count in right.items()})
        committed = text[: max(right.values(), default=0) + 1]
        router.update(record.id, tree, committed, dict.fromkeys(right, 0.8))
        return route, len(committed)

    def run(self, request_id: str, domain: str, seed: int, rounds: int = 30, tenant: str = "public") -> list[list[str]]:
        """Return the model drafters asked, round by round."""
        record = fakes.record([1, 2, 3], request_id=request_id).model_copy(update={"tenant": tenant})
        rng, length, asked = random.Random(request_id), len(record.prompt_ids), []
        for _ in range(rounds):
            route, committed = self.round(record, domain, length, rng)
            assert "lookup" in route.drafters, "model-free ones are always asked"
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


def share(asked: Iterable[list[str]], domain: str) -> float:
    """Return the share of the rounds in which the domain's own drafter was asked."""
    rounds = list(asked)
    return sum(domain in names for names in rounds) / len(rounds)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_request_finds_its_drafter_within_some_rounds(domain: str) -> None:
    """This holds over many requests, each new to its tenant, in any order of first tries."""
    late = []
    for seed in range(20):
        asked = Mix(build()).run(f"r{seed}", domain, seed)
        assert all(len(names) == 1 for names in asked), "on the verifier's own cores one at a time"
        late += asked[10:]
    assert share(late, domain) > 0.85


def test_a_new_request_asks_the_drafter_that_was_right_on_those_before() -> None:
    mix = Mix(build())
    for i in range(6):
        mix.run(f"before {i}", "prose", i)
    assert [mix.run(f"new {i}", "prose", 90 + i, rounds=1) for i in range(9)] == [[["prose"]]] * 9
    asked = [names for i in range(9) for names in mix.run(f"other {i}", "qa", 70 + i)[15:]]
    assert share(asked, "qa") > 0.85, "but not for long where it is wrong"


def test_tenants_share_nothing() -> None:
    mix = Mix(build())
    for i in range(6):
        mix.run(f"theirs {i}", "code", i, tenant="them")
    firsts = Counter(mix.run(f"ours {i}", "code", i, rounds=1, tenant="us")[0][0] for i in range(40))
    assert set(firsts) == set(DOMAINS), "for all that is known here each may be the best"


def test_a_new_process_starts_from_the_stored_priors(redis_client: redis.Redis) -> None:
    store, old = SharedStatsStore(redis_client, "test"), build()
    for i in range(6):
        Mix(old).run(f"old {i}", "prose", i)
    StatsExchange(old.experience, store).beat()
    new = build()
    new.experience.add("public", {})  # a request of this tenant came in
    StatsExchange(new.experience, store).beat()
    for i in range(9):
        assert Mix(new).run(f"new {i}", "prose", 50 + i)[0] == ["prose"]


def test_the_same_requests_are_routed_the_same_way() -> None:
    runs = [[Mix(build()).run(f"r{i}", "qa", i) for i in range(3)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_lone_drafter_is_no_choice_and_no_cost() -> None:
    router = build()
    mix = Mix(router, DrafterPool({"code": "draft:1"}, ("lookup",)))
    assert mix.run("r", "code", 0, rounds=3) == [["code"]] * 3
    assert (router.asked_rounds, router.experience.groups()) == (Counter(), [])


def test_a_request_that_names_drafters_gets_no_others() -> None:
    router, pool = build(), DrafterPool(NODES, ("lookup",))
    for names, wanted in ((("prose",), {"prose"}), (("lookup",), set()), ((), set())):
        record = fakes.record([1, 2], request_id=str(names), speculation=SpeculationBounds(drafters=names))
        route = router.route(record, 2, pool, lambda: (RoundLimits(DEPTH, 8), lambda _: 0.0))
        assert set(route.homes) == wanted
        assert set(route.drafters) == set(names)


def test_a_long_queue_is_not_worth_a_small_gain() -> None:
    """The best drafter's node is loaded: the others are asked; without the load it is."""
    for price, is_asked in ((0.0, True), (10.0, False)):
        mix = Mix(build(), prices={NODES["code"]: price})
        asked = [names for seed in range(5) for names in mix.run(f"r{seed}", "code", seed)[10:]]
        assert (share(asked, "code") > 0.5) is is_asked


def test_all_drafters_that_gain_are_asked_on_other_machines() -> None:
    away = DrafterPool(NODES, ("lookup",), core_share=0.0)
    for most, longest in ((1, 1), (2, 2), (8, 3)):
        mix = Mix(build(most=most), away)
        assert max(len(names) for seed in range(5) for names in mix.run(f"r{seed}", "qa", seed)) == longest


def test_the_policy_bounds_what_the_settings_allow() -> None:
    route = build(most=8).route(
        fakes.record([1, 2]), 2, DrafterPool(NODES, (), core_share=0.0), lambda: (RoundLimits(DEPTH, 1), lambda _: 0.0)
    )
    assert len(route.homes) == 1


def test_a_node_that_never_answers_is_no_longer_asked() -> None:
    router, pool = build(), DrafterPool(NODES, ())
    record = fakes.record([1, 2, 3], request_id="r")
    asked = []
    for length in range(50, 90):
        route = router.route(record, length, pool, lambda: (RoundLimits(DEPTH, 8), lambda _: 0.0))
        router.record_asked(record, route)
        asked += route.homes
        if asked[-1] != "code":  # it hangs: the others are right now and then
            router.update("r", tree_of({asked[-1]: [5, 6, -1]}), [5, 6, 7])
    assert Counter(asked)["code"] < 6


def test_a_round_without_any_answer_is_a_miss() -> None:
    router = build()
    record = fakes.record([1, 2], request_id="r")
    for length in (2, 3):
        route = router.route(record, length, DrafterPool(NODES), lambda: (RoundLimits(DEPTH, 8), lambda _: 0.0))
        router.record_asked(record, route)
    router.remove("r")
    changed = router.experience.changes("drafters:public")
    assert changed["*"] == ([1.0, 1.0], [0.0, 1.0])


class TestNodes:
    """Test several nodes that host the same drafter."""

    HOSTS = ("draft:1", "draft:2", "draft:3")

    def pool(self, *boxes: str, waiting: dict[str, int] | None = None) -> DrafterPool:
        return DrafterPool({"code": boxes[0]}, (), hosts={"code": boxes}, waiting=waiting or {})

    def home(self, router: Router, request_id: str, length: int, pool: DrafterPool) -> str:
        record = fakes.record([1, 2], request_id=request_id)
        return router.route(record, length, pool, lambda: (RoundLimits(DEPTH, 8), lambda _: 0.0)).homes["code"]

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
    assert Mix(build(kind)).run("r", "qa", 0, rounds=5) == [firsts] * 5


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


def test_learned_routing_commits_more_than_one_drafter_or_chance() -> None:
    """Over a mix of domains, on the verifier's own cores: one drafter a round."""

    def mean_length(router: Router) -> float:
        mix, lengths = Mix(router), []
        for i in range(30):
            domain = DOMAINS[i % 3]
            record = fakes.record([1, 2, 3], request_id=f"r{i}")
            rng, length = random.Random(i), len(record.prompt_ids)
            for _ in range(25):
                _, committed = mix.round(record, domain, length, rng)
                length += committed
                lengths.append(committed)
            router.remove(record.id)
        return sum(lengths) / len(lengths)

    ours, first, paper = (mean_length(build(kind, most=1)) for kind in ("learned", "first", "cosine"))
    assert ours > 1.3 * first
    assert ours > 1.05 * paper


def test_experience_is_bounded_by_its_least_used_tenant() -> None:
    experience = DrafterPriors(max_tenants=2)
    for tenant in ("a", "b", "a", "c"):
        experience.add(tenant, {"code": (1.0, 2.0)})
    assert experience.groups() == ["drafters:a", "drafters:c"]
