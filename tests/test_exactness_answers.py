"""Check that stop strings, schemas and log-probabilities depend on neither drafters nor takeovers."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from app.answer_form import Thinking
from app.assembly.verifier import build_replay
from app.config import Settings
from app.engine.cpu.forward import Forward
from app.engine.cpu.load import load
from app.engine.text.call_syntax import END_OF_THINK, THINK
from app.engine.text.stop_strings import up_to_stop
from app.engine.text.tokenizer import Tokenizer
from app.errors import GenerationFailed
from app.messages import FinishReason, Record
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import Sampling, TokenLogprobs
from app.stages.verify import verify
from app.store.memory import MemoryStore
from app.store.protocol import Snapshot
from app.verifier import verifier
from app.verifier.replay import Replay
from tests import fakes
from tests.fakes import Book, characters
from tests.workers.tiny import make_model

SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "minLength": 4, "maxLength": 9},
        "numbers": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 2,
            "maxItems": 4,
        },
        "is_it": {"type": "boolean"},
    },
    "required": ["word", "numbers", "is_it"],
    "additionalProperties": False,
}
SAMPLINGS = [
    Sampling(seed=3),
    Sampling(seed=4, temperature=1.5),
    Sampling(seed=5, temperature=1.0, top_p=0.9, choice=2),
]
ids = ["greedy", "sampled", "filtered"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Forward]:
    yield load(folder)


class Shop:
    """Run one request in pipelines of every kind over the tiny model."""

    def __init__(self, model: Forward, tokenizer: Tokenizer) -> None:
        self._model, self.tokenizer = model, tokenizer

    def pipeline(self, book: Book | None = None, store: MemoryStore | None = None) -> LocalPipeline:
        cast = characters(book or Book(), self.tokenizer.vocab_size)
        drafters = [cast[name] for name in ("oracle", "shy", "random", "half")] if book else []
        return fakes.pipeline(
            fakes.runner(self._model),
            drafters,
            vocab_size=self.tokenizer.vocab_size,
            policy=Policy(max_draft_tokens=6),
            store=store,
            tokenizer=self.tokenizer,
        )

    def plainly(self, one: Record) -> Snapshot:
        local = self.pipeline()
        fakes.texts(local, one)
        return local.store.snapshot(one.id)

    def helped(self, one: Record, text: tuple[int, ...], kill_every: int | None = None) -> Snapshot:
        """Run with drafters that know the free text, and others; each verifier dies after `kill_every` steps."""
        book, store = Book(), MemoryStore()
        book.write(one, text)
        local = self.pipeline(book, store)
        fakes.submit(local, one)
        steps = 0
        while store.active():
            local.step()
            steps += 1
            if kill_every and steps % kill_every == 0:
                local = self.pipeline(book, store)
                local.verifier.adopt([one.id])
        return store.snapshot(one.id)

    def record(self, max_tokens: int, sampling: Sampling, **rest) -> Record:
        made = fakes.record(self.tokenizer.encode("Tell me"), max_tokens, sampling=sampling)
        return made.model_copy(update={"eos_ids": self.tokenizer.eos_ids, **rest})


@pytest.fixture(scope="module")
def shop(model: Forward, tokenizer: Tokenizer) -> Shop:
    return Shop(model, tokenizer)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=ids)
def test_json_of_a_schema_is_the_same_with_and_without_drafts_and_after_kills(shop: Shop, sampling: Sampling) -> None:
    # a random model loves white space, which every schema allows
    spaces = dict.fromkeys(shop.tokenizer.encode(" \n\r\t"), -100.0)
    biased = sampling.model_copy(update={"logit_bias": spaces})
    one = shop.record(120, biased, grammar=json.dumps(SCHEMA), logprobs=2)
    plain = shop.plainly(one)
    assert plain.finish_reason is FinishReason.STOP, shop.tokenizer.decode(plain.tokens)
    answer = json.loads(shop.tokenizer.decode(plain.tokens))
    assert list(answer) == ["word", "numbers", "is_it"] and 4 <= len(answer["word"]) <= 9
    helped = shop.helped(one, plain.tokens)
    assert helped.tokens == plain.tokens and helped.finish_reason == plain.finish_reason
    assert helped.logprobs == plain.logprobs
    assert helped.stats.accepted > len(plain.tokens) // 3, "drafts were right"
    killed = shop.helped(one, plain.tokens, kill_every=3)
    assert killed.tokens == plain.tokens and killed.logprobs == plain.logprobs


def test_text_without_the_schema_is_another(shop: Shop) -> None:
    free = shop.plainly(shop.record(40, SAMPLINGS[0]))
    assert not shop.tokenizer.decode(free.tokens).lstrip().startswith("{")


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=ids)
def test_a_stop_string_ends_the_run_at_the_token_that_completes_it(shop: Shop, sampling: Sampling) -> None:
    free = shop.plainly(shop.record(40, sampling))
    text = shop.tokenizer.decode(free.tokens)
    # byte tokens: a stop string of three characters is completed in the middle of a run of drafted tokens
    for start in range(0, 30, 4):
        stop = text[start : start + 3]
        if "\ufffd" in stop:
            continue
        one = shop.record(40, sampling, stop=("never said", stop))
        plain, helped = shop.plainly(one), shop.helped(one, free.tokens)
        killed = shop.helped(one, free.tokens, kill_every=2)
        assert plain.tokens == helped.tokens == killed.tokens == free.tokens[: len(plain.tokens)]
        assert plain.finish_reason is helped.finish_reason is FinishReason.STOP
        answer = shop.tokenizer.decode(plain.tokens)
        assert answer.endswith(stop) and text.startswith(answer) and stop not in answer[:-1]
        assert up_to_stop(answer, one.stop) == answer[: -len(stop)]
        assert helped.stats.rounds < max(4, len(plain.tokens)), "tokens were committed in runs"


def test_a_stop_string_that_never_occurs_ends_nothing(shop: Shop) -> None:
    one = shop.record(24, SAMPLINGS[0], stop=("never said",))
    free = shop.plainly(shop.record(24, SAMPLINGS[0]))
    assert shop.plainly(one).tokens == free.tokens == shop.helped(one, free.tokens).tokens
    assert shop.plainly(one).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=ids)
def test_logprobs_are_those_of_transformers_on_the_same_prefix(shop: Shop, folder: Path, sampling: Sampling) -> None:
    one = shop.record(16, sampling, logprobs=5)
    plain = shop.plainly(one)
    helped = shop.helped(one, plain.tokens)
    assert helped.tokens == plain.tokens and helped.logprobs == plain.logprobs and helped.stats.accepted
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole = [*one.prompt_ids, *plain.tokens]
    with torch.inference_mode():
        logits = reference(torch.tensor([whole])).logits[0, len(one.prompt_ids) - 1 : -1]
    expected = logits.log_softmax(-1)
    assert len(plain.logprobs) == len(plain.tokens)
    for token, found, row in zip(plain.tokens, plain.logprobs, expected, strict=True):
        assert found.logprob == pytest.approx(float(row[token]), abs=2e-4)
        best = row.topk(5)
        assert [logprob for _, logprob in found.top] == pytest.approx(best.values.tolist(), abs=2e-4)
        assert [id_ for id_, _ in found.top] == best.indices.tolist()


def test_logprobs_are_after_bias_and_before_filters(shop: Shop) -> None:
    """A single allowed token is certain; a temperature and a top-k of one change no log-probability."""
    certain = shop.plainly(shop.record(3, Sampling(seed=0, allowed_token_ids=(70,)), logprobs=4))
    assert certain.logprobs == (TokenLogprobs(logprob=0.0, top=((70, 0.0),)),) * 3
    filtered = Sampling(seed=0, temperature=3.0, top_k=1)
    plain = shop.plainly(shop.record(6, Sampling(seed=0), logprobs=3))
    assert shop.plainly(shop.record(6, filtered, logprobs=3)).logprobs == plain.logprobs
    biased = shop.plainly(shop.record(1, Sampling(seed=0, logit_bias={plain.tokens[0]: 2.0}), logprobs=0))
    assert biased.logprobs[0].logprob > plain.logprobs[0].logprob and biased.logprobs[0].top == ()


def test_a_grammar_that_allows_no_token_ends_its_request_alone(shop: Shop) -> None:
    """Its tokens so far are committed, drafted ones among them; others of the batch are not affected."""

    class Narrow:
        def is_free(self, generated):
            return False

        def mask(self, generated):
            if len(generated) == 7:
                raise GenerationFailed("nothing can follow")
            return np.ones(shop.tokenizer.vocab_size, bool)

    free = shop.record(12, SAMPLINGS[0])
    text = shop.plainly(free).tokens
    book, other = Book(), free.model_copy(update={"id": "other"})
    book.write(free, text)
    book.write(other, text)
    local = shop.pipeline(book)
    fakes.submit(local, free, other)
    local.verifier.sequences[free.id].grammar = Narrow()
    fakes.finish(local)
    failed, whole = (local.store.snapshot(one.id) for one in (free, other))
    assert (failed.tokens, failed.finish_reason, failed.error) == (text[:7], FinishReason.ERROR, "nothing can follow")
    assert whole.tokens == text and failed.stats.accepted
    assert not local.verifier.sequences.suspects and not local.verifier.sequences


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=ids)
@pytest.mark.parametrize("least", [0, 5, 9])
def test_an_answer_of_least_length_is_the_same_with_and_without_drafts_and_after_kills(
    shop: Shop, sampling: Sampling, least: int
) -> None:
    """Tokens that would end it are masked before, end the text behind, and are as any other where they are ignored."""
    text = shop.plainly(shop.record(12, sampling, eos_ids=())).tokens
    assert len(text) == 12, "nothing ends it"
    one = shop.record(12, sampling, eos_ids=(text[3], text[7]), min_tokens=least)
    plain = shop.plainly(one)
    assert len(plain.tokens) > least and not set(one.eos_ids) & set(plain.tokens[:least])
    if not least:
        assert plain.tokens == text[: 1 + min(text.index(end) for end in one.eos_ids)]
        assert plain.finish_reason is FinishReason.STOP
    for kill_every in (None, 2):
        helped = shop.helped(one, text, kill_every)
        assert (helped.tokens, helped.finish_reason) == (plain.tokens, plain.finish_reason)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=ids)
@pytest.mark.parametrize("thinking", [Thinking.FIRST, Thinking.INSIDE])
def test_reasoning_is_ended_at_its_most_tokens_with_and_without_drafts_and_after_kills(
    shop: Shop, sampling: Sampling, thinking: Thinking, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shop.plainly(shop.record(12, sampling, eos_ids=())).tokens
    end = next(token for token in range(shop.tokenizer.vocab_size) if token not in text)
    monkeypatch.setattr(Tokenizer, "token_of", lambda _, mark: {THINK: text[0], END_OF_THINK: end}[mark])
    one = shop.record(12, sampling, eos_ids=(), most_thinking=4, thinking=thinking)
    plain, place = shop.plainly(one).tokens, 4 + (thinking is Thinking.FIRST)
    assert plain[: place + 1] == (*text[:place], end) and len(plain) == 12 and len({*plain[place:]}) > 1
    for kill_every in (None, 2):
        assert shop.helped(one, text, kill_every).tokens == plain
    assert shop.plainly(one.model_copy(update={"most_thinking": 12})).tokens == text


def test_a_form_that_is_complete_ends_however_long_it_should_be(shop: Shop) -> None:
    one = shop.record(40, SAMPLINGS[0], grammar='{"const": 1}', min_tokens=30)
    plain = shop.plainly(one)
    assert (shop.tokenizer.decode(plain.tokens).strip(), plain.finish_reason) == ("1", FinishReason.STOP)


def test_logprobs_are_kept_only_where_the_request_wants_them(shop: Shop) -> None:
    assert shop.plainly(shop.record(6, SAMPLINGS[1])).logprobs == ()


def test_choices_of_one_seed_are_different_texts_and_always_the_same(shop: Shop) -> None:
    def text(choice: int) -> tuple[int, ...]:
        one = shop.record(12, Sampling(seed=9, temperature=1.5, choice=choice))
        plain = shop.plainly(one)
        assert shop.helped(one, plain.tokens).tokens == plain.tokens
        return plain.tokens

    texts = [text(choice) for choice in range(4)]
    assert len(set(texts)) == 4 and text(2) == texts[2]


KINDS = {
    "schema": {"grammar": json.dumps(SCHEMA), "prompt_logprobs": 1},
    "stop string": {"stop": ("never said", "e"), "logprobs": 2, "min_tokens": 9, "prefix": "me"},
}


def replayed(local: LocalPipeline, shop: Shop, request_id: str) -> Replay:
    """Replay an ended request of this pipeline to its end."""
    replay = build_replay(Settings(), local.verifier, shop.tokenizer, local.store.snapshot(request_id))
    while not replay.step():
        pass
    return replay


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_without_drafts_has_the_same_tokens_and_teaches_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sampling = Sampling(seed=6, temperature=1.0, frequency_penalty=0.5, repetition_penalty=1.2)
    one = shop.record(40, sampling, **KINDS[kind])
    one = one.model_copy(update={"prompt_ids": one.prompt_ids * 4})  # more than a page
    text, book = shop.plainly(one).tokens, Book()
    book.write(one, text)
    local = shop.pipeline(book)
    assert fakes.texts(local, one) == [[*text]] and local.store.snapshot(one.id).stats.accepted
    before, adopted = (local.verifier.report(), local.verifier.costs.dumps()), []
    adopt = local.verifier.target.adopt
    monkeypatch.setattr(local.verifier.target, "adopt", lambda kv: adopted.append(adopt(kv)) or adopted[-1])
    replay = replayed(local, shop, one.id)
    assert replay.difference() is None and not replay.failed
    assert adopted and not any(adopted), "nothing came from the prefix cache"
    after = {**before[0], "cache_tokens_free": local.verifier.target.free_tokens}
    assert (local.verifier.report(), local.verifier.costs.dumps()) == (after, before[1])
    assert local.verifier.target.free_tokens == local.verifier.target.capacity_tokens
    assert local.verifier.take_ended() == [one] and not local.store.active()


def test_a_replay_finds_the_place_where_a_wrong_token_was_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, book, place = shop.record(20, SAMPLINGS[1]), Book(), 7
    text = shop.plainly(one).tokens
    book.write(one, text)

    def wrong_once(works, rows):
        verdicts = verify(works, rows)
        for work, verdict in zip(works, verdicts, strict=True):
            at = place - (len(work.sequence.tokens) - len(one.prompt_ids))
            if verdict is not None and 0 <= at < len(verdict.tokens):
                verdict.tokens[at:], verdict.path = [verdict.tokens[at] ^ 1], verdict.path[:at]
        return verdicts

    local = shop.pipeline(book)
    with monkeypatch.context() as broken:
        broken.setattr(verifier, "verify", wrong_once)
        assert fakes.texts(local, one)[0][: place + 1] == [*text[:place], text[place] ^ 1]
    assert local.store.snapshot(one.id).stats.accepted
    assert replayed(local, shop, one.id).difference() == place


def test_a_replay_that_ends_elsewhere_differs_there(shop: Shop) -> None:
    local, one = shop.pipeline(), shop.record(12, SAMPLINGS[0])
    fakes.texts(local, one)
    answered = local.store.snapshot(one.id)
    for tokens, index in ((answered.tokens[:5], 5), ((*answered.tokens, 7), 12)):
        changed = dataclasses.replace(answered, tokens=tokens)
        replay = build_replay(Settings(), local.verifier, shop.tokenizer, changed)
        assert not replay.step()
        replay.give_back()
        assert local.verifier.target.free_tokens == local.verifier.target.capacity_tokens, "another may have it"
        while not replay.step():
            pass
        assert replay.difference() == index


def test_tokens_from_the_prefix_cache_are_counted(shop: Shop) -> None:
    first = shop.record(4, SAMPLINGS[0], prompt_ids=tuple(range(70, 110)))
    second = first.model_copy(update={"id": "second"})
    local = shop.pipeline()
    for one in (first, second):
        fakes.texts(local, one)
    stats = [local.store.snapshot(one.id).stats for one in (first, second)]
    assert stats[0].reused == 0 < stats[1].reused < 40


@pytest.mark.parametrize("length", [1, 2, 64, 65, 150])
def test_scores_of_a_prompt_are_those_of_transformers(shop: Shop, folder: Path, length: int) -> None:
    """In pieces of 64, whatever shapes or masks the answer, and after a verifier's death."""
    prompt = shop.tokenizer.encode("Once upon a time there was a small dragon who lived. " * 9)[:length]
    shaped = Sampling(seed=1, presence_penalty=2.0, logit_bias={5: 9.0})
    one = fakes.record(prompt, 5, sampling=shaped).model_copy(update={"prompt_logprobs": 3, "min_tokens": 3})
    plain = shop.plainly(one)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert len(plain.prompt_logprobs) == length - 1
    for token, found, row in zip(prompt[1:], plain.prompt_logprobs, expected, strict=False):
        assert found.logprob == pytest.approx(float(row[token]), abs=2e-4)
        assert [id_ for id_, _ in found.top] == row.topk(3).indices.tolist()
    unscored = shop.plainly(one.model_copy(update={"id": "other", "prompt_logprobs": None}))
    assert plain.tokens == unscored.tokens and unscored.prompt_logprobs == ()
    killed = shop.helped(one, plain.tokens, kill_every=5)
    assert killed.tokens == plain.tokens and killed.prompt_logprobs == plain.prompt_logprobs
