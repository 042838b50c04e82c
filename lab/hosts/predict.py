"""Simulate the arms of a live run: same texts in the same order, nodes, hop and cores, over a recording.

Four numbers are taken from the live run: by how much its steps without drafts were slower than the
recording's, what our own Python takes a round beside them, fitted on the same arm; what a round with
drafts takes the verifier besides, fitted on `vanilla`, one drafter's chains; and what a batch of mail takes a
node or the fuser, fitted on `specinfer`, all drafters fused. All other arms are predicted.
"""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from app.store.protocol import Snapshot
from lab.cooperate.variants import OFF, Variant
from lab.hosts.report import arm_figures, fingerprint, rate
from lab.simulate.log import Log
from lab.simulate.machines import build
from lab.simulate.models import text_of
from lab.simulate.run import model_free
from lab.simulate.world import Setting

FITTED, FITTED_MAIL = "vanilla", "specinfer"
MOST_TREES_S, MOST_MAIL_S = 0.032, 0.008
PAUSE_S = 30.0  # between blocks of requests at stated times, in which other arms have their turn
HALVINGS = 6  # of these, to find a value
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Simulated:
    """An arm that ran: its counted texts' ends in order, and of all its texts what a step took and who was asked."""

    ends: list[Snapshot]
    step_s: float
    model_rounds: float  # part of the rounds after a text's first token

    def figures(self) -> dict[str, Any]:
        """Return the figures of a report."""
        return {**arm_figures([self.ends]), "model_rounds": round(self.model_rounds, 3)}


def predict(log: Log, found: Mapping[str, Any], arms: Listed[Variant]) -> dict[str, Any]:
    """Simulate the arms of a live run `found`; return figures by arm, and what was fitted.

    Raises SystemExit where the recording is of other texts.
    """
    log = cut(log, found["texts"]["max_tokens"])
    nodes = tuple(map(tuple, found["place"]["nodes"]))
    setting = Setting(
        streams=found["streams"], hop_s=1e-3 * found["place"]["hop_ms"], nodes=nodes, is_one_core=True, is_hub=True
    )
    by_name = {arm.name: arm for arm in arms if arm.name in found["arms"]}
    plain = simulate(log, by_name[OFF], setting, found["texts"])
    if fingerprint(plain.ends) != found["fingerprint"]:
        raise SystemExit("the recording is of other texts than the live run")
    setting = replace(setting, slowdown=1e-3 * found["mean_ms"][OFF]["step"] / plain.step_s)
    ends = run(log, by_name[OFF], setting, found["texts"])
    host_s = _seconds_a_token(found["arms"][OFF]["stream_tokens_per_s"]) - _seconds_a_token(fmean(map(rate, ends)))
    setting = replace(setting, host_s=max(0.0, host_s))
    if FITTED in by_name:
        setting = fitted(log, by_name, setting, found)
    simulated = {name: simulate(log, arm, setting, found["texts"]) for name, arm in by_name.items()}
    numbers = {
        "slowdown": round(setting.slowdown, 3),
        "host_ms": round(1e3 * setting.host_s, 3),
        "trees_ms": round(1e3 * setting.trees_s, 3),
        "mail_ms": round(1e3 * setting.mail_s, 3),
    }
    return {**numbers, "arms": {name: own.figures() for name, own in simulated.items()}}


def fitted(log: Log, arms: Mapping[str, Variant], setting: Setting, found: Mapping[str, Any]) -> Setting:
    """Return the setting in which the two fitted arms are as fast as they were measured.

    What mail takes a node is a part of `vanilla`'s rounds, too: for each try of it the verifier's part is fitted anew.
    """

    def is_too_fast(name: str, tried: Setting) -> bool:
        wanted = found["arms"][name]["stream_tokens_per_s"]
        return fmean(map(rate, run(log, arms[name], tried, found["texts"]))) > wanted

    def with_trees(mail_s: float) -> Setting:
        own = replace(setting, mail_s=mail_s)
        trees_s = bisected(MOST_TREES_S, lambda tried_s: is_too_fast(FITTED, replace(own, trees_s=tried_s)))
        return replace(own, trees_s=trees_s)

    if FITTED_MAIL not in arms:
        return with_trees(0.0)
    return with_trees(bisected(MOST_MAIL_S, lambda tried_s: is_too_fast(FITTED_MAIL, with_trees(tried_s))))


def bisected(most: float, is_too_little: Callable[[float], bool]) -> float:
    """Return the value, 0 ... most, from which on it is no more too little."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_too_little(middle) else (low, middle)
    return low


def run(log: Log, arm: Variant, setting: Setting, texts: Mapping[str, Any]) -> list[Snapshot]:
    """Simulate an arm over the warming-up texts and then the counted ones; return the ends of these in order."""
    return simulate(log, arm, setting, texts).ends


def simulate(log: Log, arm: Variant, setting: Setting, texts: Mapping[str, Any]) -> Simulated:
    """Simulate an arm as `run` does; return the ends, and more of what it did."""
    counted, warm_up = texts["prompts"], texts["warm_up"]
    order = in_order(log, range(counted))
    before = in_order(log, range(counted, counted + warm_up))
    world = build(log, arm, setting, lambda: model_free(log))
    if "arrivals_s" in texts:
        world.waiting = deque(map(str, [*before, *order]))
        world.run(in_turn(texts["arrivals_s"]))
    else:
        for block in (before, *parted(order, texts["blocks"])):
            world.waiting = deque(map(str, block))
            world.run()
    ends = {text_of(record.id): world.store.snapshot(record.id) for record in world.ended}
    targets = [verifier.target for verifier in world.verifiers]
    step_s = sum(target.busy_s for target in targets) / sum(target.steps for target in targets)
    return Simulated([ends[i] for i in order], step_s, world.model_rounds)


def cut(log: Log, tokens: int) -> Log:
    """Return the recording with texts of at most so many tokens."""
    texts = tuple(text.model_copy(update={"tokens": text.tokens[:tokens]}) for text in log.texts)
    return log.model_copy(update={"texts": texts})


def in_order(log: Log, numbers: range) -> list[int]:
    """Return the indices of these texts of each domain, the domains in turn, as a live run asks them."""
    by_domain: dict[str, list[int]] = {}
    for i, text in enumerate(log.texts):
        by_domain.setdefault(text.domain, []).append(i)
    return [own[number] for number in numbers for own in by_domain.values()]


def parted(texts: list[T], blocks: int) -> list[list[T]]:
    """Part texts into so many blocks: one begins when the last of the one before has ended."""
    size = -(-len(texts) // blocks)
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def in_turn(blocks: Listed[Listed[float]]) -> list[float]:
    """Return when the requests of all blocks come, one block PAUSE_S after the last request of the one before."""
    found: list[float] = []
    for block in blocks:
        begun_s = found[-1] + PAUSE_S if found else 0.0
        found += [begun_s + at_s for at_s in block]
    return found


def _seconds_a_token(tokens_per_s: float) -> float:
    return 1.0 / tokens_per_s
