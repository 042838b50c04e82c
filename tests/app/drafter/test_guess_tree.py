"""Test trees of a model's guesses: which nodes they have, what they cost, and that caches are those of fresh paths."""

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.drafter.drafter import DrafterNode
from app.drafter.model import ModelDrafter
from app.drafter.token_fusion import TokenFusion
from app.engine.cpu.choose_forward import choose_forward
from app.engine.drafters.guesser import ModelGuesser
from app.engine.kv.pages import bytes_per_page
from app.messages import Draft
from app.request import Sampling
from app.stages.draft.protocol import Context
from app.state import Guess
from tests import fakes
from tests.app.drafter.scripts import TOKENS, erratic
from tests.fakes import PAGE_TOKENS, VOCAB, ScriptedGuesser

MODEL = choose_forward(fakes.tiny(seed=1))
Path = tuple[int, ...]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    monotonic = perf_counter = thread_time = time


class Timed(ScriptedGuesser):
    """A model that takes `row_s` more for each row of a call beyond the first, which takes a second."""

    def __init__(self, clock: Clock, row_s: float = 0.0) -> None:
        super().__init__(lambda read: Guess((read[-1] + 1) % VOCAB, 0.6, (read[-1] + 9) % VOCAB, 0.3))
        self._clock, self._row_s = clock, row_s
        self.batches: list[int] = []
        self.first_s = 0.0  # more, that the next call takes

    def guess(self, works, depth, floor):
        self.batches.append(len(works))
        self._clock.now_s += self.first_s
        self.first_s = 0.0
        self._clock.now_s += depth * (1.0 + self._row_s * (len(works) - 1))
        return super().guess(works, depth, floor)


def context(tokens: list[int], depth: int, nodes: int, least: float = 0.0, pace: float = 0.0, request: str = "r"):
    return Context(request, "public", list(tokens), 1, depth, Sampling(), least, nodes, pace)


def drafter_of(model: ScriptedGuesser, clock: Clock | None = None) -> ModelDrafter:
    return ModelDrafter("a", model, 256, clock=clock or Clock())


def paths(draft: Draft) -> dict[Path, float]:
    """Return the confidence of each node by its path."""
    found: list[Path] = [()]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*found[parent], token))
    return dict(zip(found[1:], draft.confidences, strict=True))


def likeliest(seed: int, tokens: list[int], depth: int, nodes: int) -> set[Path]:
    """Find a tree's nodes by making all of them."""
    model, level, found = erratic(seed), {(): 1.0}, {}
    for _ in range(depth):
        below = {}
        for path, survival in level.items():
            guess = model._say([*tokens, *path])
            below[(*path, guess.second)] = survival * guess.second_confidence
            below[(*path, guess.token)] = survival * guess.confidence
        found |= below
        level = below
    return set(sorted(found, key=lambda path: -found[path])[:nodes])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 20))
def test_a_tree_is_the_likeliest_of_all_nodes(seed: int, depth: int, nodes: int) -> None:
    (draft,) = drafter_of(erratic(seed)).draft([context(TOKENS, depth, nodes)])
    assert set(paths(draft)) == likeliest(seed, TOKENS, depth, nodes)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 99), st.data())
def test_a_history_changes_no_tree(seed: int, data: st.DataObject) -> None:
    """Draft as a fresh drafter does, whichever branch was right and however far it ran ahead."""
    one, tokens = drafter_of(erratic(seed)), list(TOKENS)
    for _ in range(data.draw(st.integers(1, 6))):
        now = context(tokens, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12)))
        (draft,) = one.draft([now])
        (fresh,) = drafter_of(erratic(seed)).draft([now])
        assert paths(draft) == paths(fresh)
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 12]))):
            one.run_ahead(["r"])
        tokens = [*tokens, *data.draw(st.sampled_from([(), *paths(draft)])), data.draw(st.integers(0, 8))]


class Paged(ModelGuesser):
    def __init__(self, pages: int) -> None:
        size = bytes_per_page(*MODEL.shape, PAGE_TOKENS)
        super().__init__(MODEL, None, kv_bytes=pages * size, page_tokens=PAGE_TOKENS)
        self.pool = self._runner.pool


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_branch_of_a_real_model_goes_on_as_a_fresh_context(temperature: float) -> None:
    guesser = Paged(64)
    one, fresh = (ModelDrafter("a", own, 256) for own in (guesser, Paged(64)))
    sampling = Sampling(temperature=temperature, seed=5)
    tokens = [(i * i * 5 + i) % VOCAB for i in range(2 * PAGE_TOKENS - 3)]
    for round_ in range(4):
        now = Context("r", "public", list(tokens), 1, 6, sampling, 0.0, 24, step_s=60.0)
        (draft,) = one.draft([now])
        found = paths(draft)
        grown = {path[:-1] for path in found}
        assert len(grown) > 6, "more than one path"
        for path in grown:
            (own,) = fresh.draft([Context(f"f{round_}{path}", "public", [*tokens, *path], 1, 1, sampling, 0.0, 2)])
            for (token,), sure in paths(own).items():
                assert found.get((*path, token), sure) == pytest.approx(sure, rel=1e-4)
            best = own.tokens[0]
            assert (*path, best) in found or len(found) == 24
        for _ in range(round_):
            one.run_ahead(["r"])
        # Any branch is accepted, and a token that was guessed ahead, or one that none has.
        below = [path for path in found if path[:-1] == max(grown, key=len)]
        tokens = [*tokens, *(below[-1] if round_ < 2 else (*below[0][:-1], 7))]
    one.remove("r")
    assert guesser.pool.num_free == 64, "forks have left their pages"


def test_a_tree_grows_in_the_memory_that_there_is() -> None:
    tokens = [i % VOCAB for i in range(2 * PAGE_TOKENS - 1)]
    tight, wide = Paged(3), Paged(64)
    small, large = (
        ModelDrafter("a", own, 256).draft([Context("r", "public", tokens, 1, 3, Sampling(), 0.0, 14)])[0]
        for own in (tight, wide)
    )
    assert 0 < len(small.tokens) < len(large.tokens)
    assert tight.pool.num_free < 3, "the sequence keeps its own"


def test_numbers_that_are_none_end_a_tree_and_nothing_else() -> None:
    guesser = Paged(64)
    one, sound = ModelDrafter("a", guesser, 256), guesser.guess
    calls = []

    def guess(works, depth, floor):
        calls.append(len(works))
        if len(calls) == 4:
            raise ArithmeticError("no numbers")
        return sound(works, depth, floor)

    guesser.guess = guess  # type: ignore[method-assign]
    tokens = [i % VOCAB for i in range(PAGE_TOKENS + 3)]
    (draft,) = one.draft([Context("r", "public", tokens, 1, 6, Sampling(), 0.0, 24)])
    assert max(map(len, paths(draft))) == 2 and calls[3] > 1
    assert guesser.pool.num_free == 64
    (again,) = one.draft([Context("r", "public", tokens, 1, 6, Sampling(), 0.0, 24)])
    assert max(map(len, paths(again))) > 2


def test_a_row_at_the_price_of_a_second_choice_leaves_one_path_of_one_call() -> None:
    model = ScriptedGuesser(lambda read: Guess((read[-1] + 1) % VOCAB, 0.9, 0, 0.1))
    (draft,) = drafter_of(model).draft([context([8], 4, 32, least=0.5)])
    assert (draft.tokens, draft.parents, model.calls) == ((9, 10, 11, 12), (0, 1, 2, 3), [4])


@pytest.mark.parametrize("least, nodes", [(0.01, 49), (0.2, 6), (0.4, 2)])
def test_what_is_not_worth_a_row_is_neither_sent_nor_guessed_from(least: float, nodes: int) -> None:
    (draft,) = drafter_of(Timed(Clock())).draft([context([8], 5, 64, least=least)])
    found = paths(draft)

    def survival(path: Path) -> float:
        return prod(found[path[:end]] for end in range(1, len(path) + 1))

    assert all(survival(path[:-1]) >= least for path in found)
    assert all(survival(path) >= least for path in found if found[path] == 0.3), "second choices"
    assert len(found) == nodes


@pytest.mark.parametrize("pace, levels", [(0.0, 6), (0.45, 2), (10.0, 0)])
def test_a_tree_ends_where_a_level_is_not_worth_its_seconds(pace: float, levels: int) -> None:
    clock = Clock()
    model = Timed(clock)
    one = drafter_of(model, clock)
    one.draft([context([8], 2, 32, request="first")])  # shows what a level takes
    one.trees.sureness = 0.6
    before = clock.now_s
    ((trees, part),) = one.begin([context([8], 6, 64, least=0.02, pace=pace)])
    while not part.is_done:
        trees.go_on()
    assert (clock.now_s - before, part.levels) == (levels, levels)


def test_as_many_branches_as_are_worth_the_wider_level() -> None:
    widths = {}
    for row_s in (0.0, 0.9):
        clock = Clock()
        model = Timed(clock, row_s)
        one = drafter_of(model, clock)
        for request in ("first", "second"):
            one.draft([context([8], 5, 8, request=request)])
        model.batches.clear()
        one.draft([context([8], 5, 8, pace=0.5, request="third")])
        widths[row_s] = max(model.batches)
    assert widths[0.0] > widths[0.9] == 1


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(4, 14), st.data())
def test_sequences_that_want_for_memory_lose_no_page_and_draft_the_same(pages: int, data: st.DataObject) -> None:
    guesser = Paged(pages)
    one, wide = ModelDrafter("a", guesser, 256), ModelDrafter("a", Paged(256), 256)
    texts = {f"r{i}": [(i + k * k) % VOCAB for k in range(data.draw(st.integers(1, 40)))] for i in range(3)}
    for _ in range(2):
        asked = [Context(name, "public", tokens, 1, 4, Sampling(), 0.0, 12) for name, tokens in texts.items()]
        whole = {draft.request_id: paths(draft) for draft in wide.draft(asked)}
        for draft in one.draft(asked):
            same = {path: sure for path, sure in paths(draft).items() if path in whole[draft.request_id]}
            assert same == pytest.approx({path: whole[draft.request_id][path] for path in same}, rel=1e-4)
            texts[draft.request_id] = [*texts[draft.request_id], *max(paths(draft), key=len, default=())]
    for name in texts:
        one.remove(name)
    assert guesser.pool.num_free == pages


def test_a_report_counts_all_seconds_where_one_more_guess_is_not_known_of_all_models() -> None:
    clock = Clock()
    models = [ModelDrafter(name, Timed(clock), 256, clock=clock) for name in "ab"]
    fusion = TokenFusion([models[1].draft_kv])
    node = DrafterNode(models, lambda job: None, "n", token_fusion=fusion, clock=clock)
    for length in (1, 4):
        began_s = clock.now_s
        job = replace(fakes.draft_job("r", [*range(1, 1 + length)], ("a", "b")), max_draft_tokens=3, max_nodes=3)
        draft, _ = fakes.drafts_by(node, [job])
        assert draft.report is not None and draft.report.guess_s == clock.now_s - began_s > 0.0


def test_a_report_counts_what_one_more_guess_takes() -> None:
    """The first call of a round reads the last verdict, too."""
    clock = Clock()
    model = Timed(clock)
    node = DrafterNode([drafter_of(model, clock)], lambda job: None, "n", clock=clock)
    for length in (1, 4):
        model.first_s = 9.0
        job = replace(fakes.draft_job("r", [*range(1, 1 + length)], ("a",)), max_draft_tokens=3, max_nodes=3)
        (draft,) = fakes.drafts_by(node, [job])
        assert draft.report is not None
        assert draft.report.guess_s == draft.report.guessed > 1
