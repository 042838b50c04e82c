"""Test sequences from a snapshot to their end, and memory by age."""

from tests import fakes
from tests.app.verifier.parts import parts, start
from tests.fakes import PAGE_TOKENS


def test_a_sequence_starts_from_what_is_committed():
    sequence = start(parts(), "r", length=5, generated=3)
    assert (sequence.tokens, sequence.generated, sequence.cached) == ([1] * 5 + [2] * 3, 3, 0)
    assert sequence.stats.rounds == 3


def test_a_sequence_of_a_dead_verifier_is_a_suspect():
    one = parts()
    start(one, "r", strikes=1)
    start(one, "s")
    assert one.sequences.suspects == {"r"}


def test_trees_go_first_where_memory_is_short():
    one = parts(pages=2)
    sequence = start(one, "r", length=2 * PAGE_TOKENS - 1)
    work = fakes.work(sequence, 0, drafts=fakes.tree([1, 2, 3], [0, 0, 1]))
    (reserved,) = one.sequences.reserve([work])
    assert (reserved.sequence, reserved.tokens) == (sequence.kv, work.tokens)
    assert (len(reserved.tree), reserved.forks) == (0, [])
    assert len(work.tree) == 3, "the caller's entry stays as it was"


def test_the_youngest_are_preempted_where_memory_is_short():
    one = parts(pages=6)
    old, middle, young = (
        start(one, name, length=2 * PAGE_TOKENS, created_s=created_s)
        for name, created_s in (("z-old", 1.0), ("middle", 2.0), ("a-young", 3.0))
    )
    for sequence in (old, middle, young):
        assert one.sequences.reserve([fakes.work(sequence, 0)])
        sequence.kv.cached = len(sequence.tokens)
        sequence.tokens.append(1)
    works = [fakes.work(sequence, sequence.cached) for sequence in (old, middle, young)]
    assert [work.sequence for work in one.sequences.reserve(works)] == [old.kv, middle.kv]
    assert (young.cached, len(young.kv.pages)) == (0, 0)
    assert old.cached == middle.cached == 2 * PAGE_TOKENS


def test_a_younger_sequence_never_preempts_an_older_one():
    """Else two that do not fit together would preempt each other in turn, and neither would progress."""
    one = parts(pages=3)
    old = start(one, "old", length=2 * PAGE_TOKENS, created_s=1.0)
    young = start(one, "young", length=2 * PAGE_TOKENS, created_s=2.0)
    assert one.sequences.reserve([fakes.work(old, 0)])
    old.kv.cached = len(old.tokens)
    assert one.sequences.reserve([fakes.work(young, 0)]) == []
    assert (old.cached, len(old.kv.pages)) == (2 * PAGE_TOKENS, 2)
    assert not young.kv.pages


def test_memory_goes_by_age_whatever_the_order_in_the_batch():
    one = parts(pages=3)
    old = start(one, "old", length=2 * PAGE_TOKENS, created_s=1.0)
    young = start(one, "young", length=2 * PAGE_TOKENS, created_s=2.0)
    kept = one.sequences.reserve([fakes.work(young, 0), fakes.work(old, 0)])
    assert [work.sequence for work in kept] == [old.kv]


def test_an_entry_of_a_preempted_sequence_is_not_run():
    """There may be memory again: two were preempted for one sequence, with room left for the smaller."""
    one = parts(pages=7)
    old = start(one, "old", length=3 * PAGE_TOKENS, created_s=1.0)
    large = start(one, "large", length=3 * PAGE_TOKENS - 1, created_s=2.0)
    small = start(one, "small", length=PAGE_TOKENS - 1, created_s=3.0)
    for sequence in (old, large, small):
        assert one.sequences.reserve([fakes.work(sequence, 0)])
        sequence.kv.cached = len(sequence.tokens)
        sequence.tokens.append(1)
    old.kv.tokens += [1] * PAGE_TOKENS
    works = [fakes.work(sequence, sequence.cached) for sequence in (old, large, small)]
    assert [work.sequence for work in one.sequences.reserve(works)] == [old.kv]
    assert one.sequences.reserve([fakes.work(small, 0)]), "from its beginning it can"


def test_an_ended_sequences_tokens_can_be_read_until_the_next_step():
    one = parts()
    sequence = start(one, "r", length=5)
    assert one.sequences.tokens("r") is sequence.tokens
    one.sequences.stop("r")
    assert one.sequences.tokens("r") == [1] * 5
    one.sequences.adopt_prefixes([])
    assert one.sequences.tokens("r") is None
