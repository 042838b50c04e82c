"""Translate a request's sampling parameters to what kernels take."""

import math
from collections.abc import Sequence as Listed

from app.request import Sampling, TokenLogprobs
from kernels.sampling.target_token import Choice


def choice_of(sampling: Sampling) -> Choice:
    """The sampling of a request as the kernels take it; admission has settled the seed."""
    s = sampling
    return Choice(s.temperature, s.top_p, s.top_k, s.min_p, s.seed or 0, s.choice)


def is_shaped(sampling: Sampling) -> bool:
    """Does it change the logits before they are filtered?"""
    s = sampling
    return bool(s.frequency_penalty or s.presence_penalty or s.logit_bias or s.allowed_token_ids)


def token_logprobs(own: float, ids: Listed[int], logprobs: Listed[float]) -> TokenLogprobs:
    """As they travel: six digits after the point, and no token that cannot be said."""
    top = [(id_, round(one, 6)) for id_, one in zip(ids, logprobs, strict=True) if one > -math.inf]
    return TokenLogprobs(logprob=round(own, 6), top=tuple(top))
