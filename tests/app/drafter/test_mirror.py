from hypothesis import given
from hypothesis import strategies as st

from app.drafter.replicas import TokenCopies
from app.messages import DraftJob
from app.request import Sampling


def job(tokens: list[int], start: int, base: int, request_id: str = "r") -> DraftJob:
    return DraftJob(
        request_id=request_id,
        verifier="v",
        fuser="f",
        base=base,
        start=start,
        tokens=tuple(tokens[start:base]),
        prompt_length=1,
        max_draft_tokens=4,
        drafters=(),
        sampling=Sampling(),
        due_s=0.0,
    )


TEXT = list(range(100, 140))


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 40)), max_size=20))
def test_whatever_order_jobs_come_in_the_copy_is_a_prefix_of_the_truth(jobs: list[tuple[int, int]]) -> None:
    mirror = TokenCopies()
    for start, base in jobs:
        now = job(TEXT, min(start, base - 1), base)
        was_stale, known = mirror.is_stale(now), mirror.get("r")
        gap = now.start > len(known or ())
        tokens = mirror.update(now)
        assert (tokens is None) == gap
        if gap:
            tokens = mirror.replace("r", TEXT[:base])
        assert tokens is not None
        assert tokens == TEXT[: len(tokens)]
        assert was_stale == (len(tokens) > base)
        assert len(tokens) >= base


def test_a_copy_that_contradicts_the_job_is_dropped() -> None:
    mirror = TokenCopies()
    mirror.replace("r", [1, 2, 3, 4])
    assert mirror.update(job([1, 2, 9, 9, 9], 2, 5)) is None
    assert mirror.get("r") is None
    mirror.replace("r", [1, 2, 3, 4])
    assert mirror.update(job([1, 2, 9], 0, 3)) == [1, 2, 9]


def test_a_job_whose_tokens_do_not_reach_its_base_is_a_gap() -> None:
    mirror = TokenCopies()
    broken = job(TEXT, 0, 4).model_copy(update={"base": 6})
    assert mirror.update(broken) is None
    mirror.replace("r", TEXT[:4])
    assert mirror.update(broken) is None


def test_the_list_is_the_same_object_while_it_grows() -> None:
    mirror = TokenCopies()
    first = mirror.update(job(TEXT, 0, 3))
    assert mirror.update(job(TEXT, 3, 5)) is first


def test_memory_is_bounded_least_recent_first() -> None:
    mirror = TokenCopies(max_tokens=100)
    for i in range(5):
        mirror.update(job(TEXT, 0, 40, request_id=str(i)))
        mirror.update(job(TEXT, 0, 40, request_id="0"))
    assert len(mirror) == 2
    assert mirror.get("0") == TEXT and mirror.get("4") == TEXT
    mirror.remove("0")
    mirror.remove("unknown")
    assert mirror._held_tokens == 40
