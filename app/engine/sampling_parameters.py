"""Translate a request's sampling parameters to what kernels take.

A new parameter also goes to `app.request.Sampling`, `kernels.sampling.parameters` and `web.openai.requests`.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence as Listed

import numpy as np
import torch

from app.request import Sampling, TokenLogprobs
from kernels.sampling.target_token import Choice, Row


def choice_of(sampling: Sampling) -> Choice:
    s = sampling
    return Choice(s.temperature, s.top_p, s.top_k, s.min_p, s.seed or 0, s.choice)


def row_of(sampling: Sampling, position: int, counts: Mapping[int, int], mask: np.ndarray | None) -> Row:
    s = sampling
    return Row(
        choice_of(s),
        position,
        counts,
        s.frequency_penalty,
        s.presence_penalty,
        s.repetition_penalty,
        s.logit_bias,
        s.allowed_token_ids,
        mask,
    )


def is_shaped(sampling: Sampling) -> bool:
    return bool(is_penalised(sampling) or sampling.logit_bias or sampling.allowed_token_ids)


def is_penalised(sampling: Sampling) -> bool:
    return bool(sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1.0)


def row_logprobs(row: torch.Tensor, token: int, top: int) -> TokenLogprobs:
    """`row`: (V,) float32 logits. Equal log-probabilities come by rising id."""
    logprobs = row.log_softmax(0)
    if not top:
        return token_logprobs(float(logprobs[token]), [], [])
    floor = logprobs.topk(min(top, len(logprobs))).values[-1]
    ids = (logprobs >= floor).nonzero().squeeze(-1)  # equal ones stay in the order of their ids
    best, order = logprobs[ids].sort(descending=True, stable=True)
    return token_logprobs(float(logprobs[token]), ids[order[:top]].tolist(), best[:top].tolist())


def token_logprobs(own: float, ids: Listed[int], logprobs: Listed[float]) -> TokenLogprobs:
    """Round log-probabilities to six digits; leave out forbidden tokens."""
    top = [(id_, round(one, 6)) for id_, one in zip(ids, logprobs, strict=True) if one > -math.inf]
    return TokenLogprobs(logprob=round(own, 6), top=tuple(top))
