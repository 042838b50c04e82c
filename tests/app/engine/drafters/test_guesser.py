import json
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.drafters.loader import load_guesser
from app.engine.weights.tensors import embedding_sha256
from app.errors import ModelRefused
from app.request import Sampling
from kernels.cpu import chain, decoder
from kernels.sampling.contenders import find, window
from kernels.sampling.gumbel_noise import gumbel_noise_reference
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

MEMORY = {"kv_bytes": 2**20, "page_tokens": PAGE_TOKENS}
HEAD_IDS = torch.tensor([1, 4, 5, 17, 30, 60])
TEXT = list(range(20, 40))
GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.8, seed=3)
NUCLEUS = Sampling(temperature=0.7, top_p=0.8, seed=2**40 + 5)
FILTERED = Sampling(temperature=1.1, top_p=0.9, top_k=20, min_p=0.01, seed=6)


def guess(guesser: ModelGuesser, sampling: Sampling):
    work = fakes.work(fakes.cached(TEXT, sampling=sampling), 0)
    assert guesser.try_reserve(work, 0)
    ((found,),) = guesser.guess([work], 1, 0.0)
    guesser.release(work.sequence)
    return found


def logits_of(model, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1]


def test_a_chain_calls_what_is_compiled_already():
    """Other types of arguments would have parts of it compiled twice at a first start, for seconds."""
    guess(ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY), Sampling())
    entries = decoder.run_decode, chain.run_draft, find, window
    assert [len(vars(each)["overloads"]) for each in entries] == [1] * len(entries)
    inner = decoder.decode, chain.guess  # none, where what calls them was found compiled
    assert max(len(vars(each)["overloads"]) for each in inner) <= 1


def test_a_greedy_guess_is_the_two_likeliest_tokens():
    found = guess(ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY), Sampling())
    q, tokens = logits_of(fakes.tiny(), TEXT).softmax(-1).topk(2)
    assert [found.token, found.second] == tokens.tolist()
    assert [found.confidence, found.second_confidence] == pytest.approx(q.tolist(), rel=1e-4)


def test_one_guess_has_as_many_choices_as_are_wanted():
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY)
    work = fakes.work(fakes.cached(TEXT), 0)
    assert guesser.try_reserve(work, 0)
    ((found,),) = guesser.guess_one([work], 4)
    q, tokens = logits_of(fakes.tiny(), TEXT).softmax(-1).topk(4)
    assert [found.token, found.second, *(token for token, _ in found.further)] == tokens.tolist()
    assert [chance for _, chance in found.further] == pytest.approx(q.tolist()[2:], rel=1e-4)


def test_a_sampled_guess_meets_the_noise_that_the_target_will_meet():
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY)
    z = logits_of(fakes.tiny(), TEXT) / 0.7
    for seed in range(30):
        scores = z + gumbel_noise_reference(torch.arange(VOCAB), seed, 0, len(TEXT))
        found = guess(guesser, Sampling(temperature=0.7, seed=seed))
        assert [found.token, found.second] == scores.topk(2).indices.tolist()
        assert found.confidence == pytest.approx((0.7 * scores).softmax(-1)[found.token].item(), rel=1e-3)


def test_with_one_token_kept_there_is_no_second():
    found = guess(
        ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY), Sampling(temperature=1.0, top_k=1, seed=1)
    )
    assert (found.token, found.confidence) == (int(logits_of(fakes.tiny(), TEXT).argmax()), 1.0)
    assert found.second_confidence == 0.0


def test_a_chunk_of_a_prompt_has_no_guess():
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY)
    work = fakes.work(fakes.cached(TEXT), 0, 9)
    assert guesser.try_reserve(work, 0)
    assert guesser.guess([work], 1, 0.0) == [[]]


def works_of(guesser: ModelGuesser, lengths: tuple[int, ...], depth: int, samplings=(GREEDY,)):
    """Return final entries of texts of these lengths, cached up to a last piece of a few tokens, sampled in turn."""
    works = []
    for i, length in enumerate(lengths):
        tokens = [(i * 13 + j * j * 5 + j) % VOCAB for j in range(length)]
        state = fakes.cached(tokens, request_id=f"r{i}", sampling=samplings[i % len(samplings)])
        read = max(0, length - 1 - i)
        if read:
            first = fakes.work(state, 0, read)
            assert guesser.try_reserve(first, 0)
            guesser.guess([first], 1, 0.0)
        works.append(fakes.work(state, read))
        assert guesser.try_reserve(works[-1], depth - 1)
    return works


def one_by_one(guesser: ModelGuesser, lengths: tuple[int, ...], depth: int, samplings):
    """Return the guesses of as many calls, each from logits."""
    works = works_of(guesser, lengths, depth, samplings)
    found = [[] for _ in works]
    for _ in range(depth):
        for guesses, (guess,) in zip(found, guesser.guess_one(works, 2), strict=True):
            guesses.append(guess)
        for work, guesses in zip(works, found, strict=True):
            work.start, work.tokens = work.start + len(work.tokens), [guesses[-1].token]
    return found


@pytest.mark.parametrize("lengths", [(1,), (20, 3, 125, 382), (509, 511, 512, 30)])
@pytest.mark.parametrize("head_ids", [None, HEAD_IDS])
@pytest.mark.parametrize("samplings", [(GREEDY,), (SAMPLED, GREEDY), (NUCLEUS, FILTERED)])
def test_guesses_of_one_call_are_those_of_many(lengths, head_ids, samplings):
    model = fakes.tiny(max_position_embeddings=1024)
    if head_ids is not None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[head_ids])
        model.lm_head.out_features = len(head_ids)
    guesser = ModelGuesser(choose_forward(model), head_ids, kv_bytes=2**22, page_tokens=PAGE_TOKENS)
    found = guesser.guess(works_of(guesser, lengths, 6, samplings), 6, 0.0)
    for ours, theirs in zip(found, one_by_one(guesser, lengths, 6, samplings), strict=True):
        assert [(g.token, g.second) for g in ours] == [(g.token, g.second) for g in theirs]
        for field in ("confidence", "second_confidence"):
            assert [getattr(g, field) for g in ours] == pytest.approx([getattr(g, field) for g in theirs], rel=1e-4)


def test_a_chain_ends_with_its_last_likely_sequence():
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY)
    whole = guesser.guess(works_of(guesser, (20, 33), 8), 8, 0.0)
    floor = 0.5
    likely = max(next(i for i in range(9) if prod(g.confidence for g in guesses[:i]) < floor) for guesses in whole)
    cut = guesser.guess(works_of(guesser, (20, 33), 8), 8, floor)
    assert [len(guesses) for guesses in cut] == [likely, likely]
    assert cut == [guesses[:likely] for guesses in whole]


def save(folder: Path, hidden_size: int = 32) -> tuple[Path, Path, torch.nn.Module]:
    """Save a drafter; return (its folder, the target's folder, the expected model)."""
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
def test_a_drafter_on_the_targets_embedding_guesses_in_its_head(tmp_path, sampling):
    folder, target, model = save(tmp_path)
    found = guess(load_guesser(folder, target, **MEMORY), sampling)
    z = logits_of(model, TEXT)[HEAD_IDS]
    if sampling.temperature:
        z = z + sampling.temperature * gumbel_noise_reference(HEAD_IDS, sampling.seed, 0, len(TEXT))
    best = z.topk(2).indices
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


def test_a_drafter_of_another_embedding_is_refused(tmp_path):
    folder, target, _ = save(tmp_path)
    card = {"embedding": "target", "embedding_sha256": embedding_sha256(target)}
    (folder / "drafter.json").write_text(json.dumps(card))
    load_guesser(folder, target, **MEMORY)
    (folder / "drafter.json").write_text(json.dumps({**card, "embedding_sha256": "0" * 64}))
    with pytest.raises(ModelRefused, match="embedding differs"):
        load_guesser(folder, target, **MEMORY)


def test_a_drafter_with_weights_missing_is_refused(tmp_path):
    folder, target, _ = save(tmp_path)
    save_file({"head_ids": HEAD_IDS}, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match="weights missing"):
        load_guesser(folder, target, **MEMORY)


@pytest.mark.parametrize("wrong", ["tokens", "chances"])
def test_compiled_guesses_that_differ_from_the_logits_are_refused(monkeypatch, wrong):
    guesser = ModelGuesser(choose_forward(fakes.tiny()), None, **MEMORY)
    guesser.check()
    real = guesser.model.chain

    def other(*args):
        chain = real(*args)
        if wrong == "tokens":
            chain.guesses[:] = chain.guesses[:, :, ::-1].copy()
        else:
            chain.chances[:] *= 1.01
        return chain

    monkeypatch.setattr(guesser.model, "chain", other)
    with pytest.raises(ModelRefused, match="compiled guesses .* differ"):
        guesser.check()
