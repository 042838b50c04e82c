import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import load_guesser
from app.errors import ModelRefused
from app.request import Sampling
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

WIDTH = 32
TEXT = [(i * 7) % VOCAB for i in range(23)]
STATE = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3)).half()


def save(folder: Path, family: str = "llama") -> tuple[Path, Path]:
    """Save a drafter that reads states; return (its folder, the target's folder)."""
    target, drafter = fakes.tiny(tie_word_embeddings=True), fakes.tiny(family, seed=1)
    target.save_pretrained(folder / "target")
    drafter.config.save_pretrained(folder / "drafter")
    noise = torch.Generator().manual_seed(4)
    own = ("model.embed_tokens.weight", "lm_head.weight")
    weights = {name: weight for name, weight in drafter.state_dict().items() if name not in own}
    weights["feature.weight"] = torch.randn(WIDTH, WIDTH, generator=noise) * 0.3
    weights["feature.bias"] = torch.randn(WIDTH, generator=noise)
    weights["absent"] = torch.randn(WIDTH, generator=noise)
    weights["head_ids"] = torch.arange(VOCAB)
    save_file(weights, folder / "drafter" / "model.safetensors")
    (folder / "drafter" / "drafter.json").write_text(json.dumps({"embedding": "target"}))
    return folder / "drafter", folder / "target"


@pytest.fixture(scope="module")
def guesser(tmp_path_factory) -> ModelGuesser:
    return load_guesser(*save(tmp_path_factory.mktemp("reader")), kv_bytes=2**20, page_tokens=PAGE_TOKENS)


def guess(guesser: ModelGuesser, state: bytes | None, depth: int = 1, sampling: Sampling | None = None):
    work = fakes.work(fakes.cached(TEXT, sampling=sampling), 0)
    work.sequence.state = state
    assert guesser.try_reserve(work, depth - 1)
    (found,) = guesser.guess([work], depth, 0.0)
    guesser.release(work.sequence)
    return found


def reference(state: torch.Tensor | None, ids: list[int]) -> torch.Tensor:
    """Return the plain modules' logits after `ids`, (V,): W h + b is added at TEXT's last token alone."""
    target, model = fakes.tiny(tie_word_embeddings=True), fakes.tiny(seed=1)
    noise = torch.Generator().manual_seed(4)
    weight = torch.randn(WIDTH, WIDTH, generator=noise) * 0.3
    bias, absent = torch.randn(WIDTH, generator=noise), torch.randn(WIDTH, generator=noise)
    embedding = target.model.embed_tokens.weight
    with torch.inference_mode():
        added = absent.repeat(len(ids), 1)
        if state is not None:
            added[len(TEXT) - 1] = weight @ state.float() + bias
        hidden = model.model(inputs_embeds=(embedding[torch.tensor(ids)] + added)[None]).last_hidden_state[0, -1]
        return hidden @ embedding.T


def test_a_state_is_read_at_the_last_committed_token_and_nowhere_else(guesser):
    ids = list(TEXT)
    for found in guess(guesser, STATE.numpy().tobytes(), depth=4):
        q = reference(STATE, ids).softmax(-1)
        assert found.token == int(q.argmax())
        assert found.confidence == pytest.approx(q.max().item(), rel=1e-3)
        ids.append(found.token)


def test_a_sampled_guess_reads_the_state_too(guesser):
    sampling = Sampling(temperature=1.0, top_k=1, seed=1)
    (found,) = guess(guesser, STATE.numpy().tobytes(), sampling=sampling)
    assert found.token == int(reference(STATE, TEXT).argmax())


@pytest.mark.parametrize(
    "state",
    [
        None,
        b"",
        b"x" * 7,
        STATE.numpy().tobytes()[:-2],
        STATE.numpy().tobytes() * 2,
        np.full(WIDTH, np.nan, "<f2").tobytes(),
        np.full(WIDTH, np.inf, "<f2").tobytes(),
    ],
)
def test_a_drafter_without_a_sound_state_guesses_as_if_it_were_absent(guesser, state):
    (found,) = guess(guesser, state)
    q = reference(None, TEXT).softmax(-1)
    assert found.token == int(q.argmax())
    assert found.confidence == pytest.approx(q.max().item(), rel=1e-3)


def test_only_a_llama_shaped_drafter_can_read_states(tmp_path):
    folder, target = save(tmp_path, "gemma2")
    with pytest.raises(ModelRefused):
        load_guesser(folder, target, kv_bytes=2**20, page_tokens=PAGE_TOKENS)


def test_a_targets_state_is_the_one_its_head_reads():
    """Its bits are the same alone, in a batch, in a tree, and after a chunked prompt."""
    runner = fakes.served()
    first, second = fakes.cached(TEXT, request_id="a"), fakes.cached(TEXT[::-1], request_id="b")
    tree = fakes.tree([5, 6])
    works = [fakes.work(first, 0, drafts=tree), fakes.work(second, 0)]
    for work in works:
        assert runner.try_reserve(work)
    rows, _ = runner.forward(works)
    alone = fakes.work(fakes.cached([*TEXT, 5], request_id="c"), 0)
    assert runner.try_reserve(alone)
    (plain,) = runner.forward([alone])
    assert rows.state(1) == plain.state(0)
    model = fakes.tiny()
    with torch.inference_mode():
        hidden = model.model(torch.tensor([[*TEXT, 5]])).last_hidden_state[0, -1]
    assert np.frombuffer(plain.state(0), "<f2") == pytest.approx(hidden.numpy(), rel=1e-2, abs=1e-3)
