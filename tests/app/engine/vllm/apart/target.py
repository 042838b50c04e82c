"""Test the target inside vLLM against unmodified modules and the own CPU engine; run by ../test_apart.py, in vLLM's own
environment.

One engine serves all tests: a process can hold one. It runs in as many processes as TENSOR_PARALLEL says.
"""

import numpy as np
import pytest
import torch

from app.config import Settings
from app.engine.vllm.costs import measure_costs
from app.engine.vllm.load import load_target
from app.engine.weights.target_id import target_id
from app.errors import ModelRefused
from app.policy import Policy
from app.request import Sampling
from tests import fakes
from tests.app.engine.vllm.loaded import PROCESSES, loaded
from tests.fakes import VOCAB, Book, characters, record

SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}  # heads of 32, vLLM's smallest
PROMPTS = [(5, 6, 7, 5, 6, 7, 5, 6), (9,), tuple(range(20))]
LONG = tuple(i * 11 % VOCAB for i in range(90))
SAMPLINGS = [
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=1.2, top_k=20, top_p=0.9, seed=4),
    Sampling(temperature=0.9, seed=5, min_p=0.05, frequency_penalty=0.4, presence_penalty=0.2),
    Sampling(temperature=0.7, seed=7, repetition_penalty=1.2),
    Sampling(seed=6, logit_bias={7: 3.0}, allowed_token_ids=tuple(range(5, 30))),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with loaded(fakes.tiny(**SHAPE), tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.fixture(scope="module")
def model():
    return fakes.tiny(**SHAPE)


@pytest.fixture
def own():
    """Return the same weights in the own CPU engine."""
    return fakes.served(**SHAPE)


@pytest.fixture(autouse=True)
def all_is_free_afterwards(target):
    yield
    assert target.free_tokens >= target.capacity_tokens - 32


def alone(model, prompt, count):
    return fakes.alone(model, prompt, count)


def book_of(records, expected):
    book = Book()
    for one, text in zip(records, expected, strict=True):
        book.write(one, text)
    return book


def named(name, count=16):
    """Return records of the prompts, of names that no other test has."""
    return [record(prompt, count, request_id=f"{name}{i}") for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("kinds", [(), ("oracle",), ("wrong",), ("half", "random"), None], ids=str)
def test_greedy_text_is_the_models_own(target, model, kinds):
    records = named(f"greedy {kinds}")
    expected = [alone(model, prompt, 16) for prompt in PROMPTS]
    drafters = characters(book_of(records, expected))
    chosen = list(drafters.values()) if kinds is None else [drafters[kind] for kind in kinds]
    before = target.counts["steps"]
    assert fakes.texts(fakes.pipeline(target, [], chosen), *records) == expected
    if kinds == ("oracle",):
        assert target.counts["steps"] - before < 12, "drafts that are right save steps"


@pytest.mark.parametrize("kind", [None, "oracle", "half", "random"])
def test_sampled_text_and_log_probabilities_are_the_own_engines(target, own, kind):
    records = [
        record(PROMPTS[0], 12, request_id=f"sampled {kind} {i}", sampling=sampling).model_copy(update={"logprobs": 2})
        for i, sampling in enumerate(SAMPLINGS)
    ]
    reference = fakes.pipeline(own)
    expected = fakes.texts(reference, *records)
    drafters = characters(book_of(records, expected))
    local = fakes.pipeline(target, [], [drafters[kind]] if kind else [])
    assert fakes.texts(local, *records) == expected
    for one in records:
        ours, theirs = (
            [row.logprob for event in each.store.events(one.id, 0) for row in event.logprobs]
            for each in (local, reference)
        )
        assert len(ours) == 12
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("kind", [None, "oracle", "wrong"])
def test_a_grammars_masks_hold(target, own, kind):
    sampling = Sampling(seed=6, temperature=0.9)
    one = record(PROMPTS[1], 9, request_id=f"grammar {kind}", sampling=sampling)
    one = one.model_copy(update={"grammar": "even and odd"})
    (expected,) = fakes.texts(fakes.pipeline(own, tokenizer=fakes.EvenAndOdd()), one)
    assert [token % 2 for token in expected] == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    drafters = characters(book_of([one], [expected]))
    local = fakes.pipeline(target, [], [drafters[kind]] if kind else [], tokenizer=fakes.EvenAndOdd())
    assert fakes.texts(local, one) == [expected]


def test_prompts_come_in_chunks_and_are_reused(target, model):
    local = fakes.pipeline(target, policy=Policy(prefill_chunk_tokens=32))
    records = [record(PROMPTS[0], 6, request_id="a"), record(LONG, 3, request_id="b", created_s=1.0)]
    expected = [alone(model, PROMPTS[0], 6), alone(model, LONG, 3)]
    assert fakes.texts(local, *records) == expected
    again = record(LONG, 3, request_id="c")
    assert fakes.texts(local, again) == expected[1:]
    assert local.verifier.stats.reused_tokens >= 64


def test_requests_that_begin_alike_may_come_in_one_step(target, model):
    prompt = tuple(i * 7 % VOCAB for i in range(70))
    records = [record((*prompt, i), 5, request_id=f"alike {i}") for i in range(3)]
    expected = [alone(model, one.prompt_ids, 5) for one in records]
    assert fakes.texts(fakes.pipeline(target), *records) == expected


def test_tenants_share_no_prefix(target, model):
    local = fakes.pipeline(target)
    prompt = tuple(i * 13 % VOCAB for i in range(70))
    for tenant in ("one", "other"):
        one = record(prompt, 3, request_id=f"of {tenant}").model_copy(update={"tenant": tenant})
        assert fakes.texts(local, one) == [alone(model, prompt, 3)]
    assert local.verifier.stats.reused_tokens == 0


@pytest.mark.skipif(PROCESSES > 1, reason="the model is in other processes, where a test cannot make it fail")
def test_a_failed_step_changes_no_text(target, model, monkeypatch):
    """vLLM has named the step's blocks before they were computed: others that begin alike must not read them."""
    prompt = tuple(i * 17 % VOCAB for i in range(70))
    records = [record((*prompt, i), 8, request_id=f"failed {i}") for i in range(4)]
    expected = [alone(model, one.prompt_ids, 8) for one in records]
    runner = target._core.model_executor.driver_worker.worker.model_runner
    plain, calls = runner._model_forward, []

    def fails(*args, **rest):
        calls.append(1)
        if len(calls) in (1, 7):  # each of the four runs alone after the first
            raise RuntimeError("on purpose")
        return plain(*args, **rest)

    monkeypatch.setattr(runner, "_model_forward", fails)
    before = target.counts["failed steps"]
    drafters = characters(book_of(records, expected))
    assert fakes.texts(fakes.pipeline(target, [], [drafters["half"], drafters["random"]]), *records) == expected
    assert target.counts["failed steps"] - before == 2


def test_prompts_tokens_are_scored(target, own):
    one = record(LONG, 3, request_id="scored").model_copy(update={"prompt_logprobs": 2})
    found = []
    for each in (target, own):
        local = fakes.pipeline(each)
        fakes.texts(local, one)
        found.append([row for event in local.store.events(one.id, 0) for row in event.prompt_logprobs or ()])
    ours, theirs = found
    assert len(ours) == len(LONG) - 1
    assert [row.logprob for row in ours] == pytest.approx([row.logprob for row in theirs], abs=1e-4)
    assert [row.top[0][0] for row in ours] == [row.top[0][0] for row in theirs]


def test_sequences_without_memory_come_back(target, model):
    """Eight sequences of 250 tokens do not fit beside one another with their drafts."""
    records = [record((i, *LONG), 100, request_id=f"full {i}") for i in range(16)]
    expected = [alone(model, one.prompt_ids, 100) for one in records]
    local = fakes.pipeline(target, max_sequences=8)
    assert fakes.texts(local, *records) == expected


def test_states_are_what_the_head_read(target, own):
    states = []
    for each in (target, own):
        local = fakes.pipeline(each)
        one = record(PROMPTS[2], 4, request_id=f"state of {type(each).__name__}")
        fakes.submit(local, one)
        for _ in range(2):
            local.step()
        (sequence,) = local.verifier.sequences.oldest()
        states.append(np.frombuffer(sequence.kv.state, "<f2").astype(np.float32))
        fakes.finish(local)
    assert states[0] == pytest.approx(states[1], abs=2e-3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensor_size", "vLLM has no argument 'tensor_size'"),
        ("worker_cls", "Paceline itself says what 'worker_cls' is"),
    ],
)
def test_arguments_that_vllm_has_not_or_paceline_sets_are_refused(tmp_path, name, says):
    fakes.tiny(**SHAPE).save_pretrained(tmp_path)
    sizes = {"longest_tokens": 64, "max_sequences": 8, "batch_tokens": 512}
    with pytest.raises(ModelRefused, match=says):
        load_target(tmp_path, dtype="float32", kv_bytes=None, shares=True, **sizes, arguments={name: 2})


def test_another_argument_is_another_target_and_another_place_is_not(tmp_path):
    fakes.tiny(**SHAPE).save_pretrained(tmp_path)
    settings = Settings(engine="vllm", home=tmp_path)
    found = [
        target_id(tmp_path, settings.changed(vllm_arguments=text), "", "cpu")
        for text in ("{}", '{"node_rank": 1, "master_addr": "10.0.0.1"}', '{"enforce_eager": true}')
    ]
    assert found[0] == found[1] != found[2]


def test_costs_rise_with_rows(target):
    costs = measure_costs(target, VOCAB, 8)
    assert 0.0 < costs.seconds(1) <= costs.seconds(64)
    assert torch.is_inference_mode_enabled() is False
