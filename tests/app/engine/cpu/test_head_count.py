"""Counts over the whole vocabulary: by the formula, alike in any company, 0 for the target's own choice."""

from threading import Event, Thread

import numpy as np
import pytest
import torch

from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.fused import FusedForward
from kernels.cpu.threads import team
from tests import fakes

V, D = 1000, 64  # no whole number of blocks of columns
TYPES = [("stored", "float32", 1e-4), ("q8_0", "float32", 0.05), ("q8_0", "int8", 0.1)]
rng = np.random.default_rng(0)
STATES = rng.normal(size=(70, D)).astype(np.float32)
TOKENS = np.concatenate([rng.integers(0, V, 64), [0, 15, 16, 255, 256, V - 1]])


def likelier_reference(
    states: np.ndarray, norm: np.ndarray, epsilon: float, head: np.ndarray, bias: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Count (n,) int64 for states (n, d), norm (d,), head (V, d), bias (V,), all float32, and tokens (n,) int64."""
    scaled = states / np.sqrt(np.square(states).mean(1, keepdims=True) + epsilon)
    logits = (norm * scaled) @ head.T + bias
    return (logits > np.take_along_axis(logits, tokens[:, None], 1)).sum(1)


def model(weights: str = "stored", activations: str = "float32", **overrides) -> tuple[torch.nn.Module, FusedForward]:
    plain = fakes.tiny(vocab_size=V, hidden_size=D, **overrides)
    forward = choose_forward(fakes.tiny(vocab_size=V, hidden_size=D, **overrides), weights, activations=activations)
    assert isinstance(forward, FusedForward)
    return plain, forward


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("weights", "activations", "slack"), TYPES)
def test_counts_are_those_of_the_formula(weights, activations, slack, tied):
    plain, forward = model(weights, activations, tie_word_embeddings=tied)
    norm, head = plain.model.norm.weight.detach().numpy(), plain.lm_head.weight.detach().numpy()
    bias, epsilon = np.zeros(V, np.float32), plain.config.rms_norm_eps
    found = forward.head_count()(STATES, TOKENS)
    normed = norm * STATES / np.sqrt(np.square(STATES).mean(1, keepdims=True) + epsilon)
    logits = normed @ head.T
    slack *= logits.std()  # rounded weights order near ones otherwise
    own = np.take_along_axis(logits, TOKENS[:, None], 1)
    assert ((logits > own + slack).sum(1) <= found).all() and (found <= (logits > own - slack).sum(1)).all()
    if weights == "stored":
        exact = likelier_reference(STATES, norm, epsilon, head, bias, TOKENS)
        assert (np.abs(found - exact) <= 1).all() and (found == exact).mean() > 0.9


@pytest.mark.parametrize(("weights", "activations", "_"), TYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_rows_count_is_the_same_alone_and_among_others(weights, activations, _, threads):
    count = model(weights, activations)[1].head_count(threads)
    alone = [count(STATES[i : i + 1], TOKENS[i : i + 1])[0] for i in range(len(TOKENS))]
    assert count(STATES, TOKENS).tolist() == alone
    for rows in (2, 7, 8, 33, 49):
        assert count(STATES[-rows:], TOKENS[-rows:]).tolist() == alone[-rows:]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_count_on_one_thread_does_not_wait_for_a_pass(threads):
    count = model()[1].head_count(1)
    begun, end, counted = Event(), Event(), Event()

    def at_work(thread: int) -> None:
        begun.set()
        end.wait(60)

    busy = Thread(target=team(threads).run, args=(at_work,))
    busy.start()
    begun.wait(60)
    beside = Thread(target=lambda: (count(STATES, TOKENS), counted.set()))
    beside.start()
    try:
        assert counted.wait(30)
    finally:
        end.set()
        busy.join()
        beside.join()


def test_states_are_left_as_they_are():
    states = STATES.copy()
    model()[1].head_count()(states, TOKENS)
    assert np.array_equal(states, STATES)


def test_behind_the_last_layer_nothing_is_likelier_than_the_targets_choice():
    plain, forward = model()
    seen = []
    plain.model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].detach().numpy()))
    with torch.no_grad():
        chosen = plain(torch.arange(40)[None]).logits[0].argmax(1).numpy()
    count = forward.head_count()
    assert count(seen[0], chosen).tolist() == [0] * 40
    assert (count(seen[0], (chosen + 1) % V) > 0).all()


def test_all_are_likelier_than_a_token_that_the_head_has_no_column_for():
    assert model()[1].head_count()(STATES[:2], np.array([V + 3, 5])).tolist()[0] == V


def test_a_state_that_is_no_number_has_nothing_likelier():
    states = STATES[:2].copy()
    states[0, 3] = np.nan
    assert model()[1].head_count()(states, TOKENS[:2])[0] == 0
