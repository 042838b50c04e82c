"""Compare a drafter's guesses with those of the CPU's guesser; run by ../test_device.py, in a
process of its own.
"""

import numpy as np
import pytest
import torch
from torch import nn

from app.drafter.model import ModelDrafter
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.features import Features
from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import Parts
from app.engine.gpu.guesser import DeviceGuesser
from app.engine.gpu.load import checked_weights
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import BatchEntry, Tree
from tests import fakes
from tests.fakes import VOCAB
from tests.kernels.device.places import DEVICE

MEMORY = {"kv_bytes": 2**20, "page_tokens": 16}
HEAD_IDS = torch.tensor([1, 4, 5, 17, 30, 60])
GREEDY, NOISY = Sampling(), Sampling(temperature=0.7, seed=3)


def trimmed() -> nn.Module:
    """Return a model whose head rates a few tokens only."""
    model = fakes.tiny(num_hidden_layers=1)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight[HEAD_IDS].clone())
    return model


def both(make, head_ids=None):
    weights = checked_weights(make().to(DEVICE))
    return DeviceGuesser(weights, head_ids, **MEMORY), ModelGuesser(choose_forward(make()), head_ids, **MEMORY)


def text(i: int, length: int) -> list[int]:
    return [(i * 13 + j * j * 5 + j) % VOCAB for j in range(length)]


def guesses_of(guesser, samplings) -> list:
    """Return three guesses for each of several sequences, each read to another point before, beside
    one long chunk."""
    lengths = [2 + 7 * i for i in range(len(samplings))]
    sequences = [
        fakes.cached(text(i, length), request_id=f"r{i}", sampling=sampling)
        for i, (length, sampling) in enumerate(zip(lengths, samplings, strict=True))
    ]
    found = []
    for step in range(3):
        works = [BatchEntry(s, s.cached, s.tokens[s.cached :], Tree(), final=True) for s in sequences]
        if not step:
            long = fakes.cached(text(99, 80), request_id="long")
            works.insert(1, BatchEntry(long, 0, long.tokens[:70], Tree(), final=False))
        assert all(guesser.try_reserve(work, 0) for work in works)
        guesses = guesser.guess(works, 1, 0.0)
        if not step:
            assert guesses.pop(1) == []
        for sequence, (guess,) in zip(sequences, guesses, strict=True):
            sequence.cached = len(sequence.tokens)
            # The second best and another token come, too: then two or three are to be read.
            sequence.tokens += [guess.token, guess.second, 7][: step + 1]
            found.append(guess)
    for sequence in sequences:
        guesser.release(sequence)
    return found


@pytest.mark.parametrize(
    "head_ids", [pytest.param(None, marks=pytest.mark.extended), HEAD_IDS], ids=["whole", "trimmed"]
)
def test_guesses_are_those_of_the_cpu(head_ids):
    make = trimmed if head_ids is not None else lambda: fakes.tiny(num_hidden_layers=1)
    samplings = [GREEDY, NOISY, GREEDY]
    ours, theirs = (guesses_of(guesser, samplings) for guesser in both(make, head_ids))
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token, one.second) == (other.token, other.second)
        assert [one.confidence, one.second_confidence] == pytest.approx(
            [other.confidence, other.second_confidence], rel=1e-3
        )


@pytest.mark.parametrize("sampling", [pytest.param(GREEDY, marks=pytest.mark.extended), NOISY], ids=["greedy", "noisy"])
def test_a_tree_of_guesses_is_that_of_the_cpu(sampling):
    """Its branches are forks of the cache, beyond the end of a page."""
    context = Context("r", "public", text(0, 14), 1, 5, sampling, 0.0, 12)
    ours, theirs = (
        ModelDrafter("a", guesser, 256).draft([context])[0] for guesser in both(lambda: fakes.tiny(num_hidden_layers=1))
    )
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert len(set(ours.parents)) > 5, "more than one path"
    assert ours.confidences == pytest.approx(theirs.confidences, rel=1e-3)


@pytest.mark.parametrize("sampling", [pytest.param(GREEDY, marks=pytest.mark.extended), NOISY], ids=["greedy", "noisy"])
def test_nan_raises_and_its_pages_are_released(sampling):
    guesser, _ = both(lambda: fakes.tiny(num_hidden_layers=1))
    sequence = fakes.cached(text(0, 5), sampling=sampling)
    work = BatchEntry(sequence, 0, sequence.tokens, Tree(), final=True)
    assert guesser.try_reserve(work, 0)
    guesser._runner.weights.head.weight[3] = torch.nan
    with pytest.raises(ArithmeticError):
        guesser.guess([work], 1, 0.0)
    guesser.invalidate(work)
    assert not sequence.pages


@pytest.mark.extended
def test_without_states_the_embedding_holds_their_substitute(monkeypatch, tmp_path):
    """A drafter that reads states gets none here: its guesses are those on the CPU without states."""
    from app.engine.gpu import guesser as module

    absent = np.random.default_rng(5).normal(size=32).astype(np.float32)
    features = Features(np.zeros((32, 32), np.float32), np.zeros(32, np.float32), absent)
    (tmp_path / "drafter.json").write_text('{"embedding": "target"}')
    parts = Parts({}, HEAD_IDS, features)
    monkeypatch.setattr(module, "parts_of", lambda *_: parts)
    monkeypatch.setattr(module, "modules_of", lambda *_: trimmed())
    ours = module.load_device_guesser(tmp_path, tmp_path, DEVICE, torch.float32, **MEMORY)
    theirs = ModelGuesser(choose_forward(trimmed()), HEAD_IDS, **MEMORY, features=features)
    assert [g.token for g in guesses_of(ours, [GREEDY])] == [g.token for g in guesses_of(theirs, [GREEDY])]
    plain = ModelGuesser(choose_forward(trimmed()), HEAD_IDS, **MEMORY)
    assert guesses_of(ours, [GREEDY])[0].confidence != pytest.approx(
        guesses_of(plain, [GREEDY])[0].confidence, rel=1e-3
    )


@pytest.mark.extended
def test_rotation_is_as_exact_with_weights_of_16_bits(monkeypatch, tmp_path):
    """A rotation that was rounded to the weights' digits would be off by radians a few hundred
    tokens on."""
    from app.engine.gpu import guesser as module

    model = fakes.tiny(num_hidden_layers=1)
    (tmp_path / "drafter.json").write_text('{"embedding": "target"}')
    model.config.save_pretrained(tmp_path)
    weights = {name: tensor for name, tensor in model.state_dict().items() if "inv_freq" not in name}
    monkeypatch.setattr(module, "parts_of", lambda *_: Parts(weights, torch.arange(VOCAB), None))
    half, whole = (
        module.load_device_guesser(tmp_path, tmp_path, DEVICE, dtype, **MEMORY)._runner.weights
        for dtype in (torch.float16, torch.float32)
    )
    assert half.layers[0].out.weight.dtype == torch.float16
    assert torch.equal(half.cos, whole.cos) and torch.equal(half.sin, whole.sin)
