"""Check that text never depends on drafters, batch, memory or chunking: tiny models, all mixed.

The reference of greedy text is transformers' own `generate` on an unmodified copy of the model; of
sampled texts, the pipeline without speculation, whose distribution
tests/test_sampling_distribution.py checks.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config import KVDtype
from app.drafter.model import ModelDrafter
from app.engine.cpu.choose_forward import choose_forward
from app.engine.cpu.forward import Forward
from app.engine.cpu.runner import ModelRunner
from app.engine.drafters.guesser import ModelGuesser
from app.engine.early_exit.rank_test import Lens, RankTest, RowCost
from app.engine.early_exit.rows import Checkpoint, Predictor
from app.messages import Record, TreeMessage
from app.pipeline import LocalPipeline
from app.policy import Policy
from app.request import Sampling, SpeculationBounds
from app.stages.draft.registry import BUILT_IN, build
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB, Book, characters, record

LAYERS = 3
PLAIN, *DRAFTERS = (fakes.tiny(seed=seed, num_hidden_layers=LAYERS) for seed in (0, 1, 0, 2))
SERVED = fakes.served(num_hidden_layers=LAYERS).model
INTEGERS = [  # exact against themselves
    choose_forward(fakes.tiny(num_hidden_layers=LAYERS), "q8_0", activations=activations)
    for activations in ("float32", "int8")
]
MODELS = [choose_forward(model) for model in DRAFTERS]  # the second is the target's twin
EOS = 17
PRUNERS = ("none", "all", "random", "rank")
NAMES = sorted(characters(Book()))
often = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@cache
def greedy(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    return fakes.alone(PLAIN, prompt, max_tokens)


def ended(text: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    """Return the text up to its first end token."""
    end = next((i for i, token in enumerate(text) if token in eos_ids), len(text))
    return text[: end + 1]


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60).map(tuple)
loops = st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), st.integers(2, 12)).map(
    lambda loop: tuple(loop[0] * loop[1])
)


@st.composite
def batches(draw, sampling: st.SearchStrategy[Sampling]) -> list[Record]:
    """Draw a few requests of any length, some of them alike, with bounds of their own."""
    found: list[Record] = []
    for i in range(draw(st.integers(1, 5))):
        prompt = draw(st.sampled_from([one.prompt_ids for one in found])) if found and draw(st.booleans()) else None
        wish = SpeculationBounds(
            enabled=draw(st.sampled_from([True, True, True, False])),
            max_draft_tokens=draw(st.sampled_from([None, None, 0, 1, 3, 64])),
        )
        found.append(
            record(
                prompt or draw(prompts | loops),
                draw(st.integers(1, 24)),
                request_id=f"r{i}",
                sampling=draw(sampling),
                speculation=wish,
                eos_ids=draw(st.sampled_from([(), (EOS,), (EOS, 3, 40)])),
                created_s=float(draw(st.integers(0, 2))),
            )
        )
    return found


class Pruner:
    """A predictor that rejects all nodes, or random ones."""

    checkpoints = (Checkpoint(1, 0.8), Checkpoint(2, 0.5))

    def __init__(self, name: str) -> None:
        self._name, self._lot = name, np.random.default_rng(0)

    def rejects(self, layer, states, tokens):
        return np.ones(len(tokens), bool) if self._name == "all" else self._lot.random(len(tokens)) < 0.3


def predictor(name: str) -> Predictor:
    """Make one of PRUNERS."""
    if name != "rank":
        return Pruner(name)
    norm, head = PLAIN.model.norm.weight.detach().numpy(), PLAIN.lm_head.weight.detach()
    return RankTest(Lens(norm, head, np.arange(VOCAB)), {1: VOCAB // 2, 2: VOCAB // 4}, RowCost(LAYERS, 1000, 1000))


def pruning(target: ModelRunner, name: str) -> ModelRunner:
    """Return the runner with early exit for every tree, at any cost."""
    launch = target.launch

    def exiting(works):
        for work in works:
            work.may_exit = work.final
        return launch(works)

    target.predictor, target.launch = predictor(name), exiting
    return target


@st.composite
def pipelines(draw, served: Forward = SERVED, kv_dtype: KVDtype = "float32") -> tuple[LocalPipeline, Book]:
    """Draw a pipeline: drafters of any behaviour, on either side of the hop, memory short, batches small."""
    book = Book()
    cast = characters(book)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    split = draw(st.integers(0, len(names)))
    drafters = [cast[name] for name in names[:split]]
    for model in MODELS[: draw(st.integers(0, len(MODELS)))]:
        guesser = ModelGuesser(model, None, kv_bytes=draw(st.sampled_from([1, 2**20])), page_tokens=PAGE_TOKENS)
        drafters.append(ModelDrafter(f"model-{len(drafters)}", guesser, draw(st.sampled_from([40, 512]))))
    model_free = [cast[name] for name in names[split:]] + build(draw(st.sets(st.sampled_from(sorted(BUILT_IN)))))
    policy = Policy(
        max_draft_tokens=draw(st.sampled_from([1, 4, 8, 32])),
        max_batch_tokens=draw(st.sampled_from([16, 40, 512])),
        prefill_chunk_tokens=draw(st.sampled_from([16, 256])),
    )
    target = fakes.runner(served, pages=draw(st.sampled_from([6, 8, 12, 64])), kv_dtype=kv_dtype)
    pruner = draw(st.sampled_from(PRUNERS))
    target = target if pruner == "none" else pruning(target, pruner)
    target = fakes.computed_at_launch(target) if draw(st.booleans()) else target
    ways = {
        "is_shared": draw(st.booleans()),
        "steps_ahead": draw(st.sampled_from([0, 0, 1, 9])),
        "is_overlapped": draw(st.booleans()),
        "batching": draw(st.sampled_from(["pace", "pace", "cosine"])),
    }
    return fakes.pipeline(target, drafters, model_free, policy=policy, **ways), book


def run(local: LocalPipeline, book: Book, records: list[Record], texts: list[list[int]], arrivals: list[int]) -> None:
    """Let the requests arrive a few steps apart; check that they give `texts` and free all pages."""
    for one, text in zip(records, texts, strict=True):
        book.write(one, text)
    for one, steps in zip(records, arrivals, strict=True):
        fakes.submit(local, one)
        for _ in range(steps):
            local.step()
    fakes.finish(local)
    local.step()  # hears of the last commit
    for one, text in zip(records, texts, strict=True):
        snapshot = local.store.snapshot(one.id)
        assert snapshot.error is None
        assert list(snapshot.tokens) == text
        stats = snapshot.stats
        assert stats.accepted <= stats.drafted
        assert stats.rounds + stats.accepted >= len(text), "each round commits its accepted tokens and one more"
        if not one.speculation.enabled or one.speculation.max_draft_tokens == 0:
            assert stats.drafted == 0
    pool = local.verifier.target.pool
    assert pool.num_free == pool.num_pages
    assert local.verifier.sequences == {}


arrivals = st.lists(st.integers(0, 4), min_size=5, max_size=5)


@often
@given(batches(st.just(Sampling(seed=0))), pipelines(), arrivals)
def test_greedy_text_is_that_of_transformers_generate(records, shape, arriving):
    texts = [ended(greedy(one.prompt_ids, one.max_tokens), one.eos_ids) for one in records]
    run(*shape, records, texts, arriving[: len(records)])


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    top_k=st.sampled_from([0, 1, 5, 30]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**63 - 1),
)
shapings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**63 - 1),
    frequency_penalty=st.sampled_from([0.0, 1.0, -0.5, 2.0]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.6]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -3.0, 2.0, 8.0]), max_size=4),
    allowed_token_ids=st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30, unique=True).map(tuple),
)


def plainly(one: Record, model: Forward = SERVED, kv_dtype: KVDtype = "float32") -> list[int]:
    """Run the request alone, without speculation, with ample memory."""
    bare = one.model_copy(update={"speculation": SpeculationBounds(enabled=False)})
    return fakes.texts(fakes.pipeline(fakes.runner(model, kv_dtype=kv_dtype)), bare)[0]


@often
@given(batches(samplings), pipelines(), arrivals)
def test_sampled_text_of_a_seed_is_the_same_in_any_pipeline(records, shape, arriving):
    run(*shape, records, [plainly(one) for one in records], arriving[: len(records)])


ROUNDED = [*((model, "float32") for model in INTEGERS), (SERVED, "float16")]


@pytest.mark.parametrize("target", ROUNDED, ids=["float32", "int8", "float16 pages"])
@often
@given(st.data())
def test_text_of_a_rounded_target_is_the_same_in_any_pipeline(target, data):
    records, shape, arriving = data.draw(st.tuples(batches(samplings), pipelines(*target), arrivals))
    run(*shape, records, [plainly(one, *target) for one in records], arriving[: len(records)])


@often
@given(batches(shapings), pipelines(), arrivals)
def test_penalties_biases_and_masks_fork_along_the_tree(records, shape, arriving):
    run(*shape, records, [plainly(one) for one in records], arriving[: len(records)])


@often
@given(st.data(), prompts, st.integers(2, 20), samplings | shapings)
def test_a_hostile_fusers_trees_change_no_text(data, prompt, max_tokens, sampling):
    """The trees mix tokens that will be committed with others."""
    one = record(prompt, max_tokens, sampling=sampling)
    text = plainly(one)
    local = fakes.pipeline(fakes.runner(SERVED), policy=Policy(max_draft_tokens=40))
    fakes.submit(local, one)
    while local.store.active():
        generated = len(local.store.snapshot(one.id).tokens)
        local.verifier.receive([data.draw(messages(len(prompt) + generated, text[generated:]))])
        local.verifier.step(float("inf"))
    assert list(local.store.snapshot(one.id).tokens) == text


@st.composite
def messages(draw, length: int, future: list[int]) -> TreeMessage:
    size = draw(st.integers(0, 24))
    tokens, parents, depths = [], [], [0]
    for i in range(size):
        parents.append(draw(st.integers(max(0, i - 3), i)))
        depths.append(depths[parents[-1]] + 1)
        right = future[depths[-1] - 1] if depths[-1] <= len(future) else 0
        tokens.append(draw(st.sampled_from([right, right, right, (right + 1) % VOCAB, 5])))
    return TreeMessage(
        request_id="r",
        base=length + draw(st.sampled_from([0, 0, 0, 0, -1, 1])),
        tokens=tuple(tokens),
        parents=tuple(parents),
        survival=tuple(draw(st.floats(0.01, 1.0)) for _ in range(size)),
        proposers=(("any",),) * size,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_model_free", [False, True])
def test_no_drafter_alone_changes_the_text(name, is_model_free):
    book = Book()
    one = characters(book)[name]
    local = fakes.pipeline(fakes.runner(SERVED), [] if is_model_free else [one], [one] if is_model_free else [])
    records = [record(range(i, i + 12), 20, request_id=f"r{i}") for i in range(3)]
    run(local, book, records, [greedy(each.prompt_ids, 20) for each in records], [2, 1, 0])
    drafted = sum(local.store.snapshot(each.id).stats.drafted for each in records)
    accepted = sum(local.store.snapshot(each.id).stats.accepted for each in records)
    if name in ("oracle", "shy", "half", "long", "nan", "foreign"):
        assert accepted > 0, "some of its tokens are right"
    if name == "wrong":
        assert drafted > 0 == accepted
    if name in ("infinite", "stale", "stranger", "impostor", "empty", "silent", "torn", "cyclic"):
        assert drafted == 0, "nothing of it can be verified"


@pytest.mark.parametrize("name", PRUNERS[1:])
def test_no_pruner_changes_the_text(name):
    """Nor later text: rows that left early leave nothing behind, and those that stayed are whole."""
    book = Book()
    target = pruning(fakes.runner(SERVED), name)
    local = fakes.pipeline(target, [characters(book)["oracle"], characters(book)["half"]])
    records = [record(range(i, i + 12), 20, request_id=f"r{i}") for i in range(3)]
    run(local, book, records, [greedy(each.prompt_ids, 20) for each in records], [2, 1, 0])
    stats = [local.store.snapshot(each.id).stats for each in records]
    assert sum(one.drafted for one in stats) > 0
    assert (sum(one.accepted for one in stats) > 0) == (name != "all")


def test_memory_for_one_is_enough_for_many():
    """Older sequences preempt younger ones all the time, and no text changes."""
    released = []

    class Counted:
        def __init__(self) -> None:
            self._runner = fakes.runner(SERVED, pages=6)

        def __getattr__(self, name):
            return getattr(self._runner, name)

        def release(self, sequence) -> None:
            released.append(len(sequence.tokens) < 25 + 40 and sequence.cached > 0)  # not at its end
            self._runner.release(sequence)

    book = Book()
    local = fakes.pipeline(Counted(), [characters(book)["shy"], characters(book)["random"]])
    records = [record(range(i, i + 25), 40, request_id=f"r{i}", created_s=float(i)) for i in range(5)]
    run(local, book, records, [greedy(each.prompt_ids, 40) for each in records], [1] * 5)
    assert sum(released) > 3, "caches were lost on the way"
