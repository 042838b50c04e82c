"""Test that sequences that begin alike compute their beginning once, with the bits of computing it
themselves.
"""

from app.engine.kv.prefix_hash import names
from app.state import CachedSequence
from tests import fakes
from tests.fakes import PAGE_TOKENS, VOCAB

COMMON = [(i * i + 3 * i) % VOCAB for i in range(3 * PAGE_TOKENS)]


def sequence(*rest: int, tenant: str = "public") -> CachedSequence:
    return CachedSequence("r", [*COMMON, *rest], tenant=tenant)


def read(runner, state: CachedSequence):
    """Adopt what others have and read the sequence; return (the tokens adopted, the last token's
    row)."""
    reused = runner.adopt(state)
    work = fakes.work(state, state.cached)
    assert runner.try_reserve(work)
    (logits,) = runner.forward([work])
    runner.accept(work, [])
    return reused, logits.rows[0]


def test_a_shared_beginning_is_computed_once_with_the_same_bits():
    runner, alone = fakes.served(), fakes.served()
    first, second = sequence(1, 2), sequence(7, 8, 9)
    assert read(runner, first)[0] == 0
    reused, row = read(runner, second)
    assert reused == 3 * PAGE_TOKENS
    assert second.pages[:3] == first.pages[:3]
    assert (row == read(alone, sequence(7, 8, 9))[1]).all()
    runner.release(first)
    runner.release(second)
    assert runner.pool.num_free == runner.pool.num_pages
    assert read(runner, sequence(5))[0] == 3 * PAGE_TOKENS, "pages that no sequence holds are still known"


def test_at_least_the_last_token_is_computed():
    runner = fakes.served()
    read(runner, sequence())
    reused, _ = read(runner, sequence())
    assert reused == 2 * PAGE_TOKENS


def test_tenants_share_nothing():
    runner = fakes.served()
    read(runner, sequence(1))
    assert read(runner, sequence(1, tenant="other"))[0] == 0
    assert set(names(sequence(), 0, 3, PAGE_TOKENS)).isdisjoint(names(sequence(tenant="other"), 0, 3, PAGE_TOKENS))


def test_a_name_is_of_all_tokens_before_it():
    one, other = sequence(), sequence()
    other.tokens[0] += 1
    assert not set(names(one, 0, 3, PAGE_TOKENS)) & set(names(other, 0, 3, PAGE_TOKENS))
    assert names(one, 0, 1, PAGE_TOKENS) == names(sequence(), 0, 3, PAGE_TOKENS)[:1]


def test_a_sequence_with_a_partial_page_adopts_nothing():
    runner = fakes.served()
    read(runner, sequence(1))
    state = sequence(2)
    work = fakes.work(state, 0, PAGE_TOKENS + 3)
    assert runner.try_reserve(work)
    runner.forward([work])
    runner.cover(state, PAGE_TOKENS + 3)
    assert runner.adopt(state) == 0


def test_invalidation_leaves_pages_that_others_hold():
    runner, alone = fakes.served(), fakes.served()
    first, second = sequence(1), sequence(2)
    read(runner, first)
    read(runner, second)
    runner.invalidate(fakes.work(second, second.cached - 1))
    assert read(runner, sequence(3))[0] == 0, "but nobody finds it any more"
    first.tokens.append(9)
    _, row = read(runner, first)
    assert (row == read(alone, sequence(1, 9))[1]).all()


def test_a_pipeline_computes_a_shared_beginning_once():
    records = [fakes.record([*COMMON, i], 6, request_id=f"r{i}") for i in range(4)]
    local = fakes.pipeline(fakes.served())
    texts = fakes.texts(local, *records)
    assert texts == [fakes.texts(fakes.pipeline(fakes.served()), one)[0] for one in records]
    stats = local.verifier.stats
    assert stats.prompt_tokens == 4 * (len(COMMON) + 1)
    assert 0 <= stats.reused_tokens <= 3 * len(COMMON)
    again = fakes.record([*COMMON, 9], 6, request_id="later")
    fakes.texts(local, again)
    assert stats.reused_tokens >= len(COMMON)


def test_the_pages_that_a_sequence_fills_as_it_grows_are_shared_too():
    runner, first = fakes.served(), sequence(1)
    for i in range(2 * PAGE_TOKENS):
        read(runner, first)
        first.tokens.append((5 * i) % VOCAB)
    whole = len(first.tokens) - 1
    other = CachedSequence("s", [*first.tokens])
    assert read(runner, other)[0] == whole // PAGE_TOKENS * PAGE_TOKENS
