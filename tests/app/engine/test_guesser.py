import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.engine.guesser import ModelGuesser, load_guesser
from app.engine.model import prepare
from app.errors import ModelRefused
from app.messages import Sampling
from kernels.gumbel_noise import gumbel_noise_reference
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

MEMORY = {"kv_bytes": 2**20, "page_tokens": PAGE_TOKENS}
HEAD_IDS = torch.tensor([1, 4, 5, 17, 30, 60])
TEXT = list(range(20, 40))


def guess(guesser: ModelGuesser, sampling: Sampling):
    work = fakes.work(fakes.sequence(TEXT, sampling=sampling), 0)
    assert guesser.try_reserve(work)
    (found,) = guesser.guess([work])
    guesser.release(work.sequence)
    return found


def logits_of(model, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1]


def test_a_greedy_guess_is_the_two_likeliest_tokens_and_their_probabilities():
    found = guess(ModelGuesser(prepare(fakes.tiny()), None, **MEMORY), Sampling())
    q, tokens = logits_of(fakes.tiny(), TEXT).softmax(-1).topk(2)
    assert [found.token, found.second] == tokens.tolist()
    assert [found.confidence, found.second_confidence] == pytest.approx(q.tolist(), rel=1e-4)


def test_a_sampled_guess_meets_the_noise_that_the_target_will_meet():
    guesser = ModelGuesser(prepare(fakes.tiny()), None, **MEMORY)
    z = logits_of(fakes.tiny(), TEXT) / 0.7
    for seed in range(30):
        scores = z + gumbel_noise_reference(torch.arange(VOCAB), seed, 0, len(TEXT))
        found = guess(guesser, Sampling(temperature=0.7, seed=seed))
        assert [found.token, found.second] == scores.topk(2).indices.tolist()
        assert found.confidence == pytest.approx(z.softmax(-1)[found.token].item(), rel=1e-4)


def test_with_one_token_kept_there_is_no_second():
    found = guess(ModelGuesser(prepare(fakes.tiny()), None, **MEMORY), Sampling(temperature=1.0, top_k=1, seed=1))
    assert (found.token, found.confidence) == (int(logits_of(fakes.tiny(), TEXT).argmax()), 1.0)
    assert found.second_confidence == 0.0


def test_a_chunk_of_a_prompt_has_no_guess():
    guesser = ModelGuesser(prepare(fakes.tiny()), None, **MEMORY)
    work = fakes.work(fakes.sequence(TEXT), 0, 9)
    assert guesser.try_reserve(work)
    assert guesser.guess([work]) == [None]


def save(folder: Path, hidden_size: int = 32) -> tuple[Path, Path, torch.nn.Module]:
    """(drafter's folder, target's folder, the drafter's model as it should be put together)."""
    target, drafter = fakes.tiny(tie_word_embeddings=True), fakes.tiny(seed=1, hidden_size=hidden_size)
    target.save_pretrained(folder / "target")
    drafter.config.save_pretrained(folder / "drafter")
    weights = {
        name: weight.half()
        for name, weight in drafter.state_dict().items()
        if name not in ("model.embed_tokens.weight", "lm_head.weight")
    }
    save_file({**weights, "head_ids": HEAD_IDS}, folder / "drafter" / "model.safetensors")
    (folder / "drafter" / "drafter.json").write_text(json.dumps({"embedding": "target"}))
    if hidden_size == 32:
        embedding = target.model.embed_tokens.weight
        state = {name: weight.float() for name, weight in weights.items()}
        state |= {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}
        drafter.load_state_dict(state)
    return folder / "drafter", folder / "target", drafter


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5), Sampling(temperature=0.3, seed=6)])
def test_a_drafter_on_the_targets_embedding_guesses_within_its_trimmed_head(tmp_path, sampling):
    folder, target, model = save(tmp_path)
    found = guess(load_guesser(folder, target, **MEMORY), sampling)
    z = logits_of(model, TEXT)[HEAD_IDS]
    scores = z
    if sampling.temperature:
        z = z / sampling.temperature
        scores = z + gumbel_noise_reference(HEAD_IDS, sampling.seed, 0, len(TEXT))
    best = scores.topk(2).indices
    assert [found.token, found.second] == HEAD_IDS[best].tolist()
    assert [found.confidence, found.second_confidence] == pytest.approx(z.softmax(-1)[best].tolist(), rel=1e-3)


def test_a_drafter_with_weights_of_its_own_is_loaded_whole(tmp_path):
    fakes.tiny(seed=3).save_pretrained(tmp_path)
    found = guess(load_guesser(tmp_path, tmp_path, **MEMORY), Sampling())
    assert found.token == int(logits_of(fakes.tiny(seed=3), TEXT).argmax())


def test_a_drafter_of_another_width_is_refused(tmp_path):
    folder, target, _ = save(tmp_path, hidden_size=16)
    with pytest.raises(ModelRefused, match="width is 16"):
        load_guesser(folder, target, **MEMORY)


def test_a_drafter_with_weights_missing_is_refused(tmp_path):
    folder, target, _ = save(tmp_path)
    save_file({"head_ids": HEAD_IDS}, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match="weights missing"):
        load_guesser(folder, target, **MEMORY)
