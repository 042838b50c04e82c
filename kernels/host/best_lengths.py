"""Find a batch's draft lengths of the best pace, over all prefixes of the likeliest tokens and all depth caps.

    pace(n) = (B + survival of the n first tokens) / (T(B + n) + drafting of them + reading for them)

for B sequences; `app.speculation.marginal` defines the terms.
"""

from typing import NamedTuple

import numpy as np

from kernels.jit import entry, kernel


class Search(NamedTuple):
    """C candidates' survivals side by side, N in all, and the costs of their tokens in seconds."""

    survivals: np.ndarray  # (N,) float64, of each candidate falling by depth
    ends: np.ndarray  # (C + 1,) int64, where each candidate's begin
    weights: np.ndarray  # (C,) float64, by which they count
    reading_s: np.ndarray  # (C,) float64, of a candidate that asks for any
    token_s: np.ndarray  # (C,) float64, of each token of a candidate
    verify_s: np.ndarray  # (N + 1,) float64, of a step with so many tokens
    drafting_s: np.ndarray  # (bit length of C + 1, deepest + 1) float64, by bit length of those that ask, and depth
    caps: np.ndarray  # (K,) int64, on the depth, rising


@entry
def best_lengths(search: Search, least_pace: float, hoped_pace: float, best: np.ndarray) -> float:
    """Write each candidate's length at the best pace above `least_pace` to `best`, (C,) int64; return that pace.

    Writes 0 for all and returns `least_pace` where no pace is above it, or where drafts at the least cost stay within
    `hoped_pace`.
    """
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
    """Write the tokens by rising worth[candidate] - weighted survival, then depth, then candidate."""
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
