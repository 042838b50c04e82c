"""Find the draft lengths of a batch that give the best pace, over all prefixes of the likeliest tokens.

    pace(n) = (B + survival of the n first tokens) / (T(B + n) + drafting of them + reading for them)

for B sequences and every cap on the depth; `app.speculation.marginal` says what the terms mean.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from kernels.jit import entry, kernel


class Search(NamedTuple):
    """What is searched: C candidates' survivals side by side, N in all, and the costs of their tokens in seconds."""

    survivals: np.ndarray  # (N,) float64, of each candidate falling by depth
    ends: np.ndarray  # (C + 1,) int64, where each candidate's begin
    weights: np.ndarray  # (C,) float64, by which they count
    reading_s: np.ndarray  # (C,) float64, of a candidate that asks for any
    token_s: np.ndarray  # (C,) float64, of each token of a candidate
    verify_s: np.ndarray  # (N + 1,) float64, of a step with so many tokens
    drafting_s: np.ndarray  # (bit length of C + 1, deepest + 1) float64, by bit length of those that ask, and depth
    caps: np.ndarray  # (K,) int64, on the depth, rising


Token = tuple[float, int, int]  # (-weighted survival, depth, candidate): sorts the likeliest first


def best_lengths_reference(search: Search, least_pace: float, hoped_pace: float) -> tuple[list[int], float]:
    """Return each candidate's length at the best pace above `least_pace`, and that pace; the specification.

    0 for all, and `least_pace`, where there is none, and where not even drafts at the least cost would be above
    `hoped_pace`.
    """
    ends, size = search.ends.tolist(), len(search.weights)
    tokens: list[Token] = sorted(
        (-float(search.survivals[at]) * float(search.weights[i]), at - ends[i] + 1, i)
        for i in range(size)
        for at in range(ends[i], ends[i + 1])
    )
    best, best_pace = [0] * size, least_pace
    verify_s, token_s = search.verify_s.tolist(), search.token_s.tolist()
    committed = accumulate((-token[0] for token in tokens), initial=float(size))
    least_s = float(search.drafting_s[1:, 1].min())
    if max(c / (s + least_s) for c, s in zip(committed, verify_s, strict=True)) <= hoped_pace:
        return best, best_pace
    plain = size / verify_s[0]
    if any(token_s):  # a token's worth, less that of the time to read its context, at the plain pace
        tokens.sort(key=lambda token: (token[0] + plain * token_s[token[2]], *token[1:]))
    for cap in search.caps.tolist():
        allowed = [token for token in tokens if token[1] <= cap]
        n, pace = _best_prefix(allowed, search)
        if pace > best_pace:
            best, best_pace = [0] * size, pace
            for _, depth, i in allowed[:n]:
                best[i] = max(best[i], depth)
    return best, best_pace


def _best_prefix(tokens: Sequence[Token], search: Search) -> tuple[int, float]:
    """Return how many tokens to take from the front for the best pace, and that pace."""
    committed, deepest, read_s, asked = float(len(search.weights)), 0, 0.0, set[int]()
    best_n, best_pace = 0, 0.0
    for n, (negative, depth, i) in enumerate(tokens, start=1):
        committed -= negative
        read_s += float(search.token_s[i])
        if i not in asked:
            read_s += float(search.reading_s[i])
            asked.add(i)
        deepest = max(deepest, depth)
        drafted_s = float(search.drafting_s[len(asked).bit_length(), deepest])
        pace = committed / (float(search.verify_s[n]) + drafted_s + read_s)
        if pace > best_pace:
            best_n, best_pace = n, pace
    return best_n, best_pace


@entry
def best_lengths(search: Search, least_pace: float, hoped_pace: float, best: np.ndarray) -> float:
    """Write each candidate's length to `best`, (C,) int64, and return the pace; as the reference does."""
    size, count = len(search.weights), len(search.survivals)
    best[:] = 0
    values, depths, owners = np.empty(count), np.empty(count, np.int64), np.empty(count, np.int64)
    worth = np.zeros(size)
    sort_tokens(search, worth, values, depths, owners)
    least_s = search.drafting_s[1:, 1].min()
    committed, hoped = float(size), size / (search.verify_s[0] + least_s)
    for n in range(count):
        committed += values[n]
        hoped = max(hoped, committed / (search.verify_s[n + 1] + least_s))
    if hoped <= hoped_pace:
        return least_pace
    plain = size / search.verify_s[0]
    if search.token_s.any():
        for i in range(size):
            worth[i] = plain * search.token_s[i]
        sort_tokens(search, worth, values, depths, owners)
    best_pace, lengths = least_pace, np.empty(size, np.int64)
    for cap in search.caps:
        lengths[:] = 0
        committed, deepest, read_s, asked, bits = float(size), 0, 0.0, 0, 0
        first, first_pace, taken = 0, 0.0, 0  # tokens looked at up to the best prefix, its pace, tokens looked at
        n = 0
        for at in range(count):
            if depths[at] > cap:
                continue
            n += 1
            i = owners[at]
            committed += values[at]
            read_s += search.token_s[i]
            if lengths[i] == 0:
                read_s += search.reading_s[i]
                asked += 1
                if asked >= 1 << bits:
                    bits += 1
            lengths[i] = max(lengths[i], depths[at])
            deepest = max(deepest, depths[at])
            pace = committed / (search.verify_s[n] + search.drafting_s[bits, deepest] + read_s)
            taken = at + 1
            if pace > first_pace:
                first, first_pace = taken, pace
        if first_pace > best_pace:
            best_pace = first_pace
            best[:] = 0
            for at in range(first):
                if depths[at] <= cap:
                    best[owners[at]] = max(best[owners[at]], depths[at])
    return best_pace


@kernel
def sort_tokens(search: Search, worth: np.ndarray, values: np.ndarray, depths: np.ndarray, owners: np.ndarray) -> None:
    """Write the tokens by rising worth[candidate] - weighted survival, then depth, then candidate.

    A candidate's own tokens stand in that order already, so the candidates' next ones are merged.
    """
    size = len(search.weights)
    taken = np.zeros(size, np.int64)
    for at in range(len(values)):
        best, best_key = -1, 0.0
        for i in range(size):
            place = search.ends[i] + taken[i]
            if place == search.ends[i + 1]:
                continue
            key = -search.survivals[place] * search.weights[i] + worth[i]
            if best < 0 or key < best_key or (key == best_key and taken[i] < taken[best]):
                best, best_key = i, key
        values[at] = search.survivals[search.ends[best] + taken[best]] * search.weights[best]
        taken[best] += 1
        depths[at], owners[at] = taken[best], best
