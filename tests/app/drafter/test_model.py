import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.drafter import draft_kv as module
from app.drafter.draft_steps import MIN_SECOND
from app.drafter.model import ModelDrafter
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.kv.pages import bytes_per_page
from app.messages import LEAST_SURVIVAL
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import BatchEntry
from tests import fakes
from tests.app.drafter.scripts import chain
from tests.fakes import PAGE_TOKENS, VOCAB

MODEL = choose_forward(fakes.tiny(seed=1))
PAGE_BYTES = bytes_per_page(*MODEL.shape, PAGE_TOKENS)


class Guesser(ModelGuesser):
    """A guesser that also counts the rows it computes and exposes its pages."""

    def __init__(self, pages: int = 64, model=MODEL) -> None:
        super().__init__(model, None, kv_bytes=pages * PAGE_BYTES, page_tokens=PAGE_TOKENS)
        self.rows = 0
        self.pool = self._runner.pool

    def guess(self, works: list[BatchEntry], depth: int, floor: float):
        found = super().guess(works, depth, floor)
        self.rows += sum(len(w.tokens) + max(0, len(g) - 1) for w, g in zip(works, found, strict=True))
        return found


GREEDY = Sampling()


def drafter(guesser: Guesser | None = None, max_context: int = 256) -> ModelDrafter:
    return ModelDrafter("small", guesser or Guesser(), max_context)


def context(
    tokens: list[int],
    request_id: str = "r",
    depth: int = 4,
    sampling: Sampling = GREEDY,
    prompt_length: int = 1,
    least_survival: float = LEAST_SURVIVAL,
) -> Context:
    return Context(request_id, "public", tokens, prompt_length, depth, sampling, least_survival)


def text(count: int, salt: int = 0) -> list[int]:
    return [(i * i * 5 + i + salt) % VOCAB for i in range(count)]


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, seed=3), Sampling(temperature=1.5, seed=4, choice=2)]
)
def test_a_drafter_that_is_the_target_is_always_right(sampling):
    """It is right at any temperature, since it meets the same noise as the target (design D1)."""
    target = fakes.pipeline(fakes.runner(MODEL))
    (spoken,) = fakes.texts(target, fakes.record(text(20), 12, sampling=sampling))
    contexts = [context([*text(20), *spoken[:i]], f"r{i}", sampling=sampling) for i in range(12)]
    for i, draft in enumerate(drafter().draft(contexts)):
        found = chain(draft)[: 12 - i]
        assert found == spoken[i : i + len(found)]


def test_the_second_best_hangs_as_a_leaf_below_the_same_parent():
    one = drafter()
    seen_second = False
    for salt in range(12):
        (draft,) = one.draft([context(text(30, salt), f"r{salt}", depth=6)])
        assert draft.base == 30 and draft.drafter == "small"
        for node, (parent, confidence) in enumerate(zip(draft.parents, draft.confidences, strict=True), start=1):
            best = draft.parents.index(parent) + 1
            assert parent < node
            if node != best:
                seen_second = True
                assert node not in draft.parents
                assert MIN_SECOND <= confidence <= draft.confidences[best - 1]
                assert draft.tokens[node - 1] != draft.tokens[best - 1]
    assert seen_second


def test_a_draft_ends_at_the_asked_length_or_when_unlikely():
    for salt in range(12):
        for depth in (1, 2, 9):
            (draft,) = drafter().draft([context(text(30, salt), depth=depth)])
            survival, steps = 1.0, 0
            for parent in dict.fromkeys(draft.parents):
                assert survival >= LEAST_SURVIVAL
                survival *= draft.confidences[draft.parents.index(parent)]
                steps += 1
            assert steps <= depth
            assert steps == depth or survival < LEAST_SURVIVAL


def test_a_draft_is_as_long_as_asked_where_no_guess_is_too_unlikely():
    lengths, cut, short = [], [], []
    for salt in range(12):
        for found, least in ((lengths, 0.0), (cut, LEAST_SURVIVAL), (short, 0.4)):
            (draft,) = drafter().draft([context(text(30, salt), depth=9, least_survival=least)])
            found.append(len(chain(draft)))
    assert lengths == [9] * 12 and min(cut) < 9 and sum(short) < sum(cut)


def test_the_drafts_of_a_batch_end_each_by_its_own_bound():
    asked = [
        context(text(30, salt), f"r{salt}", 9, least_survival=least) for salt, least in ((1, 0.0), (2, 0.4), (3, 0.1))
    ]
    alone = [drafter().draft([one])[0] for one in asked]
    assert drafter().draft(asked) == alone
    assert len(chain(alone[0])) == 9


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_a_cache_with_a_history_drafts_as_a_fresh_one(data):
    """Sequences grow by right and wrong guesses, and are cut short, replaced and removed."""
    one, guesser = None, Guesser(pages=24)
    one = drafter(guesser)
    known = {name: data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)) for name in "abc"}
    for _ in range(data.draw(st.integers(1, 8))):
        names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))
        contexts = [context(known[name], name, data.draw(st.integers(1, 5))) for name in names]
        drafts = one.draft(contexts)
        assert drafts == [drafter().draft([each])[0] for each in contexts]
        for name, draft in zip(names, drafts, strict=True):
            right = data.draw(st.integers(0, len(chain(draft))))
            fate = data.draw(st.sampled_from(["grow", "grow", "cut", "replace", "forget"]))
            known[name] = [*known[name], *chain(draft)[:right], data.draw(st.integers(0, VOCAB - 1))]
            if fate == "cut":
                known[name] = known[name][: data.draw(st.integers(1, len(known[name])))]
            elif fate == "replace":
                known[name][data.draw(st.integers(0, len(known[name]) - 1))] = data.draw(st.integers(0, VOCAB - 1))
            elif fate == "forget":
                one.remove(name)
    for name in "abc":
        one.remove(name)
    assert guesser.pool.num_free == guesser.pool.num_pages


def test_cached_tokens_are_not_computed_again():
    guesser = Guesser()
    one, tokens = drafter(guesser), text(40, 2)
    (draft,) = one.draft([context(tokens, depth=2)])
    assert guesser.rows == 40 + 1, "the last guess is not looked at again"
    tokens = [*tokens, *chain(draft)[:1], (chain(draft)[1] + 1) % VOCAB]
    guesser.rows = 0
    one.draft([context(tokens, depth=1)])
    assert guesser.rows == 1, "the right guess stands, the second is rolled back"


def test_only_a_context_too_long_for_the_model_gets_no_draft():
    one = drafter(max_context=50)
    drafts = one.draft([context(text(47), "long", 4), context(text(46), "fits", 4), context(text(60), "longer", 4)])
    assert [draft.request_id for draft in drafts] == ["fits"]


def test_only_a_context_too_long_for_the_cache_gets_no_draft():
    guesser = Guesser(pages=3)
    one = drafter(guesser)
    drafts = one.draft([context(text(60), "long", 4), context(text(20), "fits", 4)])
    assert [draft.request_id for draft in drafts] == ["fits"]
    one.remove("fits")
    one.remove("long")
    assert guesser.pool.num_free == 3


def test_idle_sequences_make_room():
    guesser = Guesser(pages=4)
    one = drafter(guesser)
    for i in range(12):
        (draft,) = one.draft([context(text(33, i), f"r{i}")])
        assert draft == drafter().draft([context(text(33, i), f"r{i}")])[0]
    for i in range(12):
        one.remove(f"r{i}")
    assert guesser.pool.num_free == 4


def test_long_prefixes_read_in_pieces_draft_the_same(monkeypatch):
    contexts = [context(text(100, i), f"r{i}") for i in range(3)]
    expected = drafter().draft(contexts)
    monkeypatch.setattr(module, "CHUNK_TOKENS", 16)
    assert drafter().draft(contexts) == expected


def test_prefixes_that_cannot_be_read_side_by_side_lose_no_memory(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_TOKENS", 16)
    guesser = Guesser(pages=8)
    one = drafter(guesser)
    for _ in range(3):
        drafts = one.draft([context(text(100, i), f"r{i}") for i in range(3)])
        assert drafts, "one of them has room"
        for draft in drafts:
            i = int(draft.request_id[1:])
            assert draft == drafter().draft([context(text(100, i), f"r{i}")])[0]
    for i in range(3):
        one.remove(f"r{i}")
    assert guesser.pool.num_free == 8


@pytest.mark.parametrize("chunk_tokens", [16, 512])
def test_numbers_that_overflow_cost_a_round_and_nothing_else(monkeypatch, chunk_tokens):
    monkeypatch.setattr(module, "CHUNK_TOKENS", chunk_tokens)
    model = fakes.tiny(seed=1)
    with torch.no_grad():
        model.model.embed_tokens.weight[57] = torch.inf
    guesser = Guesser(pages=8, model=choose_forward(model))
    one, good = drafter(guesser), context([token % 50 for token in text(40)], "good")
    one.draft([good, context([57] * 33, "poison")])
    assert guesser.pool.num_free >= 8 - 3
    assert one.draft([good]) == drafter().draft([good])
    one.remove("good")
    one.remove("poison")
    assert guesser.pool.num_free == 8
