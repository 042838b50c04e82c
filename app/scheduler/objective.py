"""Hold the parameters of CoSine's batch objective (papers 1.4): data only, for the plans."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Hold weight and caps. The paper's values are not known; these caps do not bind for a small model."""

    token_weight: float = 1.0  # lambda, in the seconds that a token of plain decoding takes the whole pool
    max_s: float = 1.0  # T_max
    max_candidates: int = 64  # Gamma_max
