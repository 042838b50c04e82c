"""Simulate the arms of a live run: same texts in the same order, nodes, hop and cores, over a recording.

Three numbers are taken from the live run: by how much its steps without drafts were slower than the
recording's, what our own Python takes a round beside them, fitted on the same arm, and what it takes a message,
fitted on `vanilla`, one drafter's chains. All other arms are predicted.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from app.store.protocol import Snapshot
from bench.cooperate.variants import OFF, Variant
from bench.hosts.report import arm_figures, fingerprint, rate
from bench.simulate.log import Log
from bench.simulate.machines import build
from bench.simulate.models import text_of
from bench.simulate.run import model_free
from bench.simulate.world import Setting

FITTED = "vanilla"
MOST_S, HALVINGS = 0.016, 8  # of a message, and how often that is halved


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
        setting = replace(setting, message_s=message_seconds(log, by_name[FITTED], setting, found))
    simulated = {name: simulate(log, arm, setting, found["texts"]) for name, arm in by_name.items()}
    fitted = {
        "slowdown": round(setting.slowdown, 3),
        "host_ms": round(1e3 * setting.host_s, 3),
        "message_ms": round(1e3 * setting.message_s, 3),
    }
    return {**fitted, "arms": {name: own.figures() for name, own in simulated.items()}}


def message_seconds(log: Log, arm: Variant, setting: Setting, found: Mapping[str, Any]) -> float:
    """Return the seconds a message with which the arm is as fast as it was measured, 0 ... MOST_S, by bisection."""
    wanted = found["arms"][arm.name]["stream_tokens_per_s"]
    low_s, high_s = 0.0, MOST_S
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2.0
        ends = run(log, arm, replace(setting, message_s=middle_s), found["texts"])
        low_s, high_s = (middle_s, high_s) if fmean(map(rate, ends)) > wanted else (low_s, middle_s)
    return low_s


def run(log: Log, arm: Variant, setting: Setting, texts: Mapping[str, int]) -> list[Snapshot]:
    """Simulate an arm over the warming-up texts and then the counted ones; return the ends of these in order."""
    return simulate(log, arm, setting, texts).ends


def simulate(log: Log, arm: Variant, setting: Setting, texts: Mapping[str, int]) -> Simulated:
    """Simulate an arm as `run` does; return the ends, and more of what it did."""
    counted, warm_up = texts["prompts"], texts["warm_up"]
    order = in_order(log, range(counted))
    before = in_order(log, range(counted, counted + warm_up))
    world = build(log, arm, setting, lambda: model_free(log))
    world.waiting = deque(map(str, [*before, *order]))
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


def _seconds_a_token(tokens_per_s: float) -> float:
    return 1.0 / tokens_per_s
