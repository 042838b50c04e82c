"""Fit a simulation to a deployed result of the same requests, so that what it says of other ways can be held to it.

Four numbers are taken from the result: by how much steps without drafts were slower than the recording's; what the
verifier's Python takes a round beside them (from plain decoding); what a round with drafts takes it besides (from
`vanilla`); and what a batch of mail takes a node or the fuser (from `specinfer`). All other ways are predicted.
"""

from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import replace
from statistics import fmean
from typing import Any

from lab.load import Block
from lab.report import fingerprint, rate
from lab.simulate.log import Log
from lab.simulate.world import Setting
from lab.simulated import SimulatedRunner
from lab.ways import OFF, WAYS

CHAINS, FUSED = "vanilla", "specinfer"  # the fitted ways
MOST_TREES_S, MOST_MAIL_S = 0.032, 0.008
HALVINGS = 6  # of these, to find a value


def place_of(measured: dict[str, Any], streams: int) -> Setting:
    """Return the simulated setting of a deployment on one machine: all nodes on one core, a hop from the verifier."""
    place = measured["place"]
    nodes = tuple(map(tuple, place["nodes"]))
    return Setting(streams=streams, hop_s=1e-3 * place["hop_ms"], nodes=nodes, cores=place.get("cores", 1), is_hub=True)


def fitted(log: Log, measured: dict[str, Any], setting: Setting, blocks: Listed[Block]) -> Setting:
    """Return the setting in which the fitted ways are as fast as measured.

    Raises SystemExit where the recording is of other texts.
    """
    ways = measured["ways"]
    plain = SimulatedRunner(WAYS[OFF], log, setting)
    if fingerprint([plain.run(block) for block in blocks][1:]) != measured["fingerprint"]:
        raise SystemExit("the recording is of other texts than the deployed run")
    setting = replace(setting, slowdown=1e-3 * ways[OFF]["mean_ms"]["step"] / plain.step_s)
    host_s = 1.0 / ways[OFF]["stream_tokens_per_s"] - 1.0 / _rate(log, OFF, setting, blocks)
    setting = replace(setting, host_s=max(0.0, host_s))

    def is_too_fast(way: str, tried: Setting) -> bool:
        return _rate(log, way, tried, blocks) > ways[way]["stream_tokens_per_s"]

    def with_trees(mail_s: float) -> Setting:
        own = replace(setting, mail_s=mail_s)
        trees_s = bisected(MOST_TREES_S, lambda tried_s: is_too_fast(CHAINS, replace(own, trees_s=tried_s)))
        return replace(own, trees_s=trees_s)

    if CHAINS not in ways:
        return setting
    if FUSED not in ways:
        return with_trees(0.0)
    return with_trees(bisected(MOST_MAIL_S, lambda tried_s: is_too_fast(FUSED, with_trees(tried_s))))


def bisected(most: float, is_too_little: Callable[[float], bool]) -> float:
    """Return the value, 0 ... most, from which on it is enough."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_too_little(middle) else (low, middle)
    return low


def _rate(log: Log, way: str, setting: Setting, blocks: Listed[Block]) -> float:
    runner = SimulatedRunner(WAYS[way], log, setting)
    return fmean(rate(end) for block in [runner.run(block) for block in blocks][1:] for end in block)
