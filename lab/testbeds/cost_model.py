"""Predict the baselines of many worlds at once, by formulas over arrays: `off`, `vanilla` and `specinfer`, no segments.

    round      guesses of the slowest drafter asked + messages + pass of all rows + its host
    period     the longer of a round and of the passes of all batches in flight through the target's stages
    request    prompt's pass + (tokens - 1) / tokens a round x period

Tokens a round are counted in drawn texts: of several chains the one that is right longest counts. For the
screening of worlds; within some per cent of the simulator (tests/lab/testbeds/test_cost_model.py).
"""

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.scheduler.compose import MOST_NODES
from lab.simulate.machines import FUSE_S
from lab.testbeds.roofline import context_s, guess_s, pass_of, reading_of
from lab.testbeds.worlds import WorldSpec

LENGTHS = (1, 2, 3, 4, 5, 6, 8)
TOKENS = 3000  # drawn, of each domain
SAMPLE, HALVINGS = 6000, 20  # by which skills and noises are found
Values = np.ndarray


class Chains(NamedTuple):
    """What drafts of each length give in each world; (L, W) each."""

    tokens: Values  # a round, the target's own among them
    nodes: Values  # verified a round


@dataclass(frozen=True, slots=True)
class Predicted:
    """A baseline's figures; (W,) each."""

    request_s: Values
    tokens_per_s: Values
    length: Values  # the best of LENGTHS
    verifying: Values  # part of a round, hosts and messages left out
    rejected: Values  # part of the drafted


class CostModel:
    """The baselines of these worlds, which differ in numbers only."""

    def __init__(self, worlds: Listed[WorldSpec], seed: int = 0) -> None:
        """Draw texts, and count what drafts give; `seed`: of the texts."""
        self._worlds = worlds
        domains, names = worlds[0].domains, [*worlds[0].drafters]
        experts = [name for name in names if worlds[0].drafters[name].domain] or names[:1]
        mixture = [name for name in names if not worlds[0].drafters[name].domain][:1]
        self._asked = {"off": [], "vanilla": experts[:1], "vanilla, mixture": mixture, "specinfer": experts}
        spec = [world.acceptance for world in worlds]
        self._texture, self._shared = (
            np.array([getattr(one, name).value for one in spec]) for name in ("texture", "correlation")
        )
        asked = dict.fromkeys([*experts, *mixture])
        kinds = dict.fromkeys(self._kind(name, domain) for name in asked for domain in domains)
        skills = {kind: self._skills(kind) for kind in kinds}
        draws = np.random.default_rng(seed)
        found: dict[str, list[Chains]] = {arm: [] for arm, own in self._asked.items() if own}
        for domain in domains:
            hard = _hardness(self._texture, draws)
            right = {}
            for name in asked:
                right[name] = self._margin(skills[self._kind(name, domain)], hard, draws) > 0.0
            for arm, chains in found.items():
                chains.append(_rounds([right[name] for name in self._asked[arm]]))
        self.chains = {arm: _mean(own) for arm, own in found.items()}

    def predict(self, arm: str, batch: int, prompt: int, output: int, length: int | None = None) -> Predicted:
        """Return an arm's figures in closed loops of `batch` requests; with the best length, or with this one."""
        if arm == "off":
            ones = np.ones((1, len(self._worlds)))
            return self._figures(arm, batch, prompt, output, Chains(ones, 0.0 * ones), (0,), 0)
        lengths = LENGTHS if length is None else (length,)
        places = [LENGTHS.index(one) for one in lengths]
        chains = Chains(*(own[places] for own in self.chains[arm]))
        return self._figures(arm, batch, prompt, output, chains, lengths, len(self._asked[arm]))

    def _figures(
        self, arm: str, batch: int, prompt: int, output: int, chains: Chains, lengths: Listed[int], drafters: int
    ) -> Predicted:
        worlds, context = self._worlds, prompt + output / 2.0
        terms = [pass_of(world) for world in worlds]
        read_s, row_s, fixed_s, bus_row_s = (np.array([own[i] for own in terms]) for i in range(4))
        reading = [reading_of(world) for world in worlds]
        token_s, row_token_s = (np.array(own) for own in zip(*(one[:2] for one in reading), strict=True))
        host_s = np.array([world.target.host_s.value for world in worlds])
        stages = np.array([round(world.target.stages.value) for world in worlds])
        groups = np.minimum(batch, np.array([round(world.target.batches.value) for world in worlds]))
        together = np.ceil(batch / groups)

        def seconds(rows: Values) -> Values:
            return np.maximum(read_s, rows * row_s) + fixed_s + rows * bus_row_s

        rows = together * (1.0 + chains.nodes)
        verify_s = seconds(rows) + together * context * token_s + rows * context * row_token_s
        guesses_s = np.array(lengths)[:, None] * self._guess_s(arm, together, context)
        messages_s = self._messages_s(drafters) if drafters else 0.0
        round_s = guesses_s + messages_s + verify_s + host_s
        in_stages_s = groups * verify_s / stages
        period_s = np.maximum(round_s, in_stages_s)
        reads_s = prompt * prompt * row_token_s / 2.0
        if drafters:  # the others wait for their drafts, so a prompt has a pass of its own
            prompts_s = together * (seconds(np.full(len(worlds), float(prompt))) + reads_s + host_s)
        else:
            prompts_s = seconds(together - 1.0 + prompt) + host_s + reads_s
            prompts_s += (together - 1.0) * (seconds(together + prompt) - seconds(together) + reads_s)
        rounds = (output - 1.0) / chains.tokens + (1.0 - 1.0 / chains.tokens) / 2.0  # the last one is cut short
        request_s = rounds * period_s + prompts_s
        best = request_s.argmin(axis=0)

        def at(values: Values) -> Values:
            return np.take_along_axis(np.broadcast_to(values, request_s.shape), best[None], axis=0)[0]

        drafted = np.maximum(chains.nodes, 1e-9)
        return Predicted(
            at(request_s),
            batch * output / at(request_s),
            np.array(lengths)[best],
            at(verify_s / (verify_s + guesses_s)),
            at(np.where(chains.nodes > 0.0, 1.0 - (chains.tokens - 1.0) / drafted, 0.0)),
        )

    def _guess_s(self, arm: str, together: Values, context: float) -> Values:
        """Return the seconds of one more guess of the slowest drafter that is asked."""
        found = np.zeros(len(self._worlds))
        for i, world in enumerate(self._worlds):
            size = int(together[i])
            for name in self._asked[arm]:
                by_batch = guess_s(world, name)
                own_s = by_batch[min(one for one in by_batch if one >= size)] + size * context * context_s(world, name)
                found[i] = max(found[i], own_s)
        return found

    def _messages_s(self, drafters: int) -> Values:
        """Return what jobs and trees take on their way; drafts of several go to the fuser in the centre first."""
        found = []
        for world in self._worlds:
            if world.target.link is None:
                found.append((3.0 if drafters > 1 else 2.0) * world.hop_s.value)
                continue
            star = next(world.links[one.link].latency_s.value for one in world.drafters.values() if one.link)
            found.append(2.0 * (world.links[world.target.link].latency_s.value + star))
        return np.array(found) + FUSE_S * (drafters > 1)

    def _kind(self, name: str, domain: str) -> str:
        home = self._worlds[0].drafters[name].domain
        return "mixture" if home is None else "home" if home == domain else "elsewhere"

    def _skills(self, kind: str) -> Values:
        """Find the skills with which chains of the stated length give the stated tokens a round."""
        spec = [world.acceptance for world in self._worlds]
        wanted = np.array([getattr(one, kind).value for one in spec])
        length = np.array([round(one.length.value) for one in spec])
        draws = np.random.default_rng(0)
        margin = self._margin(np.zeros(len(spec)), _hardness(self._texture, draws, SAMPLE), draws)
        low, high = np.full(len(spec), -4.0), np.full(len(spec), 4.0)
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            ended, at = np.zeros(len(spec)), np.zeros(len(spec), int)
            for right in margin + middle > 0.0:
                goes_on = right & (at < length)
                at, ended = np.where(goes_on, at + 1, 0), ended + ~goes_on
            is_low = SAMPLE / ended < wanted
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return (low + high) / 2.0

    def _margin(self, skill: Values, hard: Values, draws: np.random.Generator) -> Values:
        own = draws.standard_normal(hard.shape)
        return skill - np.sqrt(self._shared) * hard - np.sqrt(1.0 - self._shared) * own


def _hardness(texture: Values, draws: np.random.Generator, tokens: int = TOKENS) -> Values:
    """Return (T, W) AR(1) processes of standard normals (`lab.testbeds.texts`)."""
    found = np.empty((tokens, len(texture)))
    found[0] = draws.standard_normal()
    for i, fresh in enumerate(draws.standard_normal(tokens - 1), start=1):
        found[i] = texture * found[i - 1] + np.sqrt(1.0 - texture * texture) * fresh
    return found


def _rounds(right: list[Values]) -> Chains:
    """Count rounds of drafts of each length: a round goes on while any chain is right; (T, W) each.

    Nodes are those of the chains, where the right ones are alike and the wrong ones apart, MOST_NODES at most.
    """
    tokens, worlds = right[0].shape
    shape = (len(LENGTHS), worlds)
    longest = np.array(LENGTHS)[:, None]
    at = np.zeros(shape, int)
    alive = [np.ones(shape, bool) for _ in right]
    ended, nodes = np.zeros(shape), np.zeros(shape)
    for i in range(tokens):
        any_right = np.zeros(shape, bool)
        sharing = np.zeros(shape)
        nodes += np.where(at == 0, float(len(right)) * np.minimum(longest, tokens - i), 0.0)
        for n, own in enumerate(right):
            alive[n] = alive[n] & (at < longest) & own[i]
            any_right |= alive[n]
            sharing += alive[n]
        nodes -= np.maximum(0.0, sharing - 1.0)
        over = ~any_right
        ended += over
        at = np.where(over, 0, at + 1)
        for n in range(len(right)):
            alive[n] |= over
    return Chains(tokens / ended, np.minimum(nodes / ended, MOST_NODES))


def _mean(found: list[Chains]) -> Chains:
    """Return tokens and nodes a round over texts of all domains: rounds add up."""
    rounds = np.sum([1.0 / one.tokens for one in found], axis=0)
    return Chains(len(found) / rounds, np.sum([one.nodes / one.tokens for one in found], axis=0) / rounds)
