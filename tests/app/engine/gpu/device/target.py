"""Test the target on a GPU against unmodified modules; run by ../test_device.py, in a process of
its own.
"""

from threading import Thread

import pytest
import torch
from triton.runtime import interpreter

from app.engine.gpu import kv_moves
from app.engine.gpu import runner as module
from app.engine.gpu.input_batch import Arrays
from app.engine.gpu.load import checked_weights
from app.engine.gpu.runner import DeviceRunner
from app.engine.profile.profiler import CHECKS, check_exactness
from app.errors import ModelRefused
from app.request import Sampling
from tests import fakes
from tests.fakes import VOCAB, Book, characters, drafted, record
from tests.kernels.device.places import DEVICE, INTERPRETED

PAGE_TOKENS = 16
PROMPTS = [(5, 6, 7, 5, 6, 7, 5, 6), (9,), tuple(range(20))]
LONG = tuple(i * 11 % VOCAB for i in range(90))  # a chunk of more than 64 rows


def served(family="llama", *, dtype=torch.float32, layers=2, **rest):
    """Return (an unmodified model, a runner over another copy of it)."""
    model, other = (fakes.tiny(family, num_hidden_layers=layers).to(DEVICE, dtype) for _ in range(2))
    weights = checked_weights(other)
    page_bytes = 2 * layers * dtype.itemsize * PAGE_TOKENS * weights.num_key_heads * weights.head_dim
    return model, DeviceRunner(weights, kv_bytes=64 * page_bytes, page_tokens=PAGE_TOKENS, shares=True, **rest)


def alone(model, prompt, max_tokens):
    ids = torch.tensor([list(prompt)], device=DEVICE)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens)
    return out[0, ids.shape[1] :].tolist()


def forking(book):
    """Return a drafter that proposes a wrong token first, the right ones beside it: accepted ones
    must move."""

    def say(context):
        right = book.next(context, 3)
        if len(right) < 2:
            return []
        wrong = [(token + 1) % VOCAB for token in right[:2]]
        tokens = [wrong[0], right[0], wrong[1], right[1], *right[2:]]
        parents = [0, 0, 2, 2, 4][: len(tokens)]
        confidences = [0.9, 0.8, 0.9, 0.8, 0.8][: len(tokens)]
        return [drafted(context, "forking", tokens, parents=tuple(parents), confidences=tuple(confidences))]

    return fakes.Scripted("forking", say)


@pytest.mark.parametrize(
    ("family", "layers", "has_graphs"),
    [
        ("llama", 1, False),
        pytest.param("llama", 2, True, marks=pytest.mark.extended),
        pytest.param("qwen2", 1, True, marks=pytest.mark.extended),
        ("qwen3", 1, True),
    ],  # mistral: below
)
def test_the_text_is_the_models_own(family, layers, has_graphs):
    model, runner = served(family, layers=layers, has_graphs=has_graphs)
    records = [record(prompt, 4, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    expected = [alone(model, prompt, 4) for prompt in PROMPTS]
    book = Book()
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    assert fakes.texts(fakes.pipeline(runner, [forking(book)]), *records) == expected


def test_side_branches_are_kept_and_moved():
    model, runner = served()
    one = record(PROMPTS[0], 8)
    book = Book()
    book.write(one, alone(model, one.prompt_ids, 8))
    local = fakes.pipeline(runner, [forking(book)])
    assert fakes.texts(local, one) == [alone(model, one.prompt_ids, 8)]
    stats = local.store.snapshot(one.id).stats
    assert stats.rounds < 8  # or nothing was ever moved
    assert runner.pool.num_free == runner.pool.num_pages


@pytest.mark.parametrize("has_graphs", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_a_steps_moves_come_in_its_one_transfer_and_before_its_time_begins(monkeypatch, has_graphs):
    _, runner = served(layers=1, has_graphs=has_graphs)
    events = []
    for owner, name in ((Arrays, "send"), (module, "_recorded"), (kv_moves, "kv_commit")):
        monkeypatch.setattr(owner, name, recorded(events, name, getattr(owner, name)))
    sequence = fakes.cached(PROMPTS[0])
    work = fakes.work(sequence, 0, drafts=fakes.tree([1, 2], [0, 0]))
    assert runner.try_reserve(work)
    runner.forward([work])
    below, page = len(PROMPTS[0]), sequence.pages[0]
    kept = runner.pages.keys[:, page, below + 1].clone()
    assert not torch.equal(runner.pages.keys[:, page, below], kept)
    runner.accept(work, [2])
    sequence.tokens += [2, 3]
    after = fakes.work(sequence, below + 1)
    assert runner.try_reserve(after)
    runner.forward([after])
    assert torch.equal(runner.pages.keys[:, page, below], kept)
    assert events == ["send", "_recorded", "_recorded", "send", "_recorded", "kv_commit", "_recorded"]


def recorded(events, name, call):
    """Return a function that does what `call` does, and records its name before."""

    def run(*args):
        events.append(name)
        return call(*args)

    return run


def test_hostile_drafters_change_nothing():
    model, runner = served(layers=1)
    records = [record(prompt, 4, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
    book = Book()
    expected = [alone(model, prompt, 4) for prompt in PROMPTS]
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    assert fakes.texts(fakes.pipeline(runner, [], list(characters(book).values())), *records) == expected


def test_prompts_of_any_length_run_beside_decoding():
    model, runner = served("mistral", layers=1)
    local = fakes.pipeline(runner)
    records = [record(PROMPTS[0], 6, request_id="a"), record(LONG, 3, request_id="b", created_s=1.0)]
    assert fakes.texts(local, *records) == [alone(model, PROMPTS[0], 6), alone(model, LONG, 3)]
    again = record(LONG, 3, request_id="c")
    assert fakes.texts(local, again) == [alone(model, LONG, 3)]
    assert local.verifier.stats.reused_tokens >= 80  # the second time its pages are there


SAMPLINGS = [
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=1.2, top_k=20, top_p=0.9, seed=4),
    Sampling(temperature=1.0, min_p=0.05, seed=5, frequency_penalty=0.7, presence_penalty=0.3),
    Sampling(seed=6, logit_bias={7: 3.0}, allowed_token_ids=tuple(range(5, 30))),
]


@pytest.mark.extended
def test_sampled_texts_are_those_of_the_cpu():
    records = [record(PROMPTS[0], 5, request_id=f"r{i}", sampling=s) for i, s in enumerate(SAMPLINGS)]
    expected = fakes.texts(fakes.pipeline(fakes.served()), *records)
    book = Book()
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    _, runner = served()
    assert fakes.texts(fakes.pipeline(runner, [forking(book)]), *records) == expected


def test_grammars_and_logprobs_are_those_of_the_cpu():
    sampling = Sampling(seed=6, temperature=0.9, choice=3, allowed_token_ids=tuple(range(5, 30)))
    wish = {"grammar": "even and odd", "logprobs": 3}
    one = record(PROMPTS[1], 5, sampling=sampling).model_copy(update=wish)
    reference = fakes.pipeline(fakes.served(num_hidden_layers=1), tokenizer=fakes.EvenAndOdd())
    (expected,) = fakes.texts(reference, one)
    assert [token % 2 for token in expected] == [0, 1, 0, 1, 0]
    book = Book()
    book.write(one, expected)
    local = fakes.pipeline(served(layers=1)[1], [forking(book)], tokenizer=fakes.EvenAndOdd())
    assert fakes.texts(local, one) == [expected]
    assert local.store.snapshot(one.id).stats.accepted, "a tree was right, and had wrong branches"
    found, wanted = (pipeline.store.snapshot(one.id).logprobs for pipeline in (local, reference))
    assert len(found) == len(wanted) == 5
    for here, there in zip(found, wanted, strict=True):
        assert here.logprob == pytest.approx(there.logprob, abs=1e-3)
        assert [id_ for id_, _ in here.top] == [id_ for id_, _ in there.top]
        assert [value for _, value in here.top] == pytest.approx([value for _, value in there.top], abs=1e-3)


@pytest.mark.extended
def test_a_rehearsal_changes_nothing_and_longer_sequences_run_all_the_same():
    model, runner = served(layers=1, longest_tokens=64)
    runner.rehearse(96)
    assert not runner.pages.keys.any() and runner.pool.num_free == runner.pool.num_pages
    for prompt in (PROMPTS[0], LONG):
        assert fakes.texts(fakes.pipeline(runner), record(prompt, 2)) == [alone(model, prompt, 2)]


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of sums of what is no number
def test_nan_is_cleared_and_spoils_no_other_sequence():
    model, runner = served()
    poisoned = fakes.cached(PROMPTS[2], request_id="p")
    work = fakes.work(poisoned, 0)
    assert runner.try_reserve(work)
    with torch.inference_mode():
        kept = runner.weights.norm.clone()
        runner.weights.norm.fill_(torch.nan)
        with pytest.raises(ArithmeticError):
            runner.forward([work])
        runner.weights.norm.copy_(kept)
    runner.pages.keys[:, poisoned.pages] = torch.nan
    runner.invalidate(work)
    assert fakes.texts(fakes.pipeline(runner), record(PROMPTS[2], 4)) == [alone(model, PROMPTS[2], 4)]


def test_tokens_and_positions_outside_the_tables_are_refused():
    _, runner = served()
    work = fakes.work(fakes.cached([3, VOCAB]), 0)
    runner.try_reserve(work)
    with pytest.raises(ValueError, match="outside"):
        runner.forward([work])


def plain_dot(self, a, b, d, *_):
    """A tile's product whose rows are alike wherever they stand, as a tensor core's are; those of a BLAS are not."""
    product = sum(a.data[:, k, None].astype(d.data.dtype) * b.data[k] for k in range(a.data.shape[1]))
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


@pytest.mark.extended
def test_an_exact_runners_rows_keep_their_bits(monkeypatch):
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", plain_dot)
    _, runner = served(layers=1, is_exact=True)
    exactness = check_exactness(runner, VOCAB)
    main_branches = sum(end - start + 1 for start, end in CHECKS if end > start)  # a chain, and the root of a fork
    assert (exactness.rows, exactness.different) == (main_branches, 0)


def test_other_families_are_refused():
    with pytest.raises(ModelRefused, match="GPT2LMHeadModel cannot run on a GPU"):
        checked_weights(fakes.tiny("gpt2").to(DEVICE))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter is wrong with bfloat16")
@pytest.mark.parametrize("is_exact", [False, True])
def test_bfloat16_gives_nearly_the_same_logits(is_exact):
    model, runner = served(dtype=torch.bfloat16, is_exact=is_exact)  # `checked_weights` has compared it
    assert fakes.texts(fakes.pipeline(runner), record(PROMPTS[0], 1)) == [alone(model, PROMPTS[0], 1)]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no streams")
def test_two_threads_capture_and_replay_on_their_own_streams():
    model, runner = served(has_graphs=True)
    _, other = served(has_graphs=True)
    expected = [alone(model, prompt, 4) for prompt in PROMPTS]
    found = {}

    def serve(name, own):
        torch.cuda.set_stream(torch.cuda.Stream())
        records = [record(prompt, 4, request_id=f"r{i}") for i, prompt in enumerate(PROMPTS)]
        found[name] = fakes.texts(fakes.pipeline(own, []), *records)

    threads = [Thread(target=serve, args=pair) for pair in (("one", runner), ("other", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": expected, "other": expected}
