"""Test what is known of the tokens that drafters have read."""

from app.speculation.read_tokens import ReadTokens
from tests.app.verifier.parts import message

HOMES = {"small": "draft:1", "other": "draft:2"}


def unread(read: ReadTokens, length: int, now_s: float = 0.0) -> tuple[int, ...]:
    return tuple(read.unread("r", length, mailbox, now_s) for mailbox in ("draft:1", "draft:2"))


def sent(fuser: str = "fuse") -> ReadTokens:
    read = ReadTokens()
    read.record_sent("r", 100, HOMES, fuser, now_s=0.0, by_s=9.0)
    return read


def test_a_node_has_read_what_its_drafters_answered():
    read = sent()
    assert unread(read, 103) == (103, 103), "sent is not read"
    read.record_answer(message(base=100, confidence={"small": 0.5}))
    assert unread(read, 103) == (3, 103), "the other was late"
    read.record_sent("r", 103, HOMES, "fuse", now_s=1.0, by_s=9.0)
    read.record_answer(message(base=100, confidence={"other": 0.5}))
    assert unread(read, 103) == (3, 3), "an answer to an older job"
    read.record_answer(message(base=101, request_id="another", confidence={"small": 0.5}))
    read.record_answer(message(base=900, confidence={"small": 0.5}))
    assert unread(read, 103) == (3, 3), "it was not sent so much"
    read.remove("r")
    assert unread(read, 103) == (103, 103)


def test_a_node_that_fuses_for_itself_has_read_unless_its_models_were_skipped():
    read = ReadTokens()
    read.record_sent("r", 100, {"small": "draft:1"}, "draft:1", now_s=0.0, by_s=9.0)
    read.record_answer(message(base=100, skipped=("small",)))
    assert unread(read, 100)[0] == 100
    assert not read.reading("draft:1", 0.0) and not read.is_awaited("r", "draft:1", 0.0)
    read.record_sent("r", 100, {"small": "draft:1"}, "draft:1", now_s=0.0, by_s=9.0)
    read.record_answer(message(base=100))
    assert unread(read, 100)[0] == 0, "though its drafters had no guess"


def test_a_node_that_does_not_answer_in_time_counts_for_nothing_until_it_does():
    read = sent()
    assert read.reading("draft:1", 8.9) == {"r": 100} and read.is_awaited("r", "draft:1", 8.9)
    assert unread(read, 103, now_s=9.0) == (0, 0), "it may be dead, or its model too short"
    assert not read.reading("draft:1", 9.0) and not read.is_awaited("r", "draft:1", 9.0)
    read.record_sent("r", 200, HOMES, "fuse", now_s=20.0, by_s=29.0)
    assert unread(read, 200, now_s=20.0) == (0, 0) and not read.reading("draft:1", 20.0)
    read.record_answer(message(base=200, confidence={"small": 0.5}))
    read.record_sent("r", 230, HOMES, "fuse", now_s=21.0, by_s=29.0)
    assert unread(read, 230, now_s=21.0) == (30, 0), "it answers again"


def test_jobs_after_the_first_give_no_more_time():
    read = sent()
    read.record_sent("r", 104, HOMES, "fuse", now_s=5.0, by_s=14.0)
    assert read.is_awaited("r", "draft:1", 8.9) and not read.is_awaited("r", "draft:1", 9.0)


def test_an_answer_to_a_job_before_the_first_at_a_node_is_another_nodes():
    read = ReadTokens()
    read.record_sent("r", 100, {"small": "draft:1"}, "draft:1", now_s=0.0, by_s=9.0)
    read.record_sent("r", 110, {"small": "draft:3"}, "draft:3", now_s=0.1, by_s=9.0)
    read.record_answer(message(base=100, confidence={"small": 0.5}))
    assert read.unread("r", 110, "draft:1", 1.0) == 10 and read.unread("r", 110, "draft:3", 1.0) == 110


def test_tables_answer_for_no_node_that_reads():
    read = ReadTokens()
    read.record_sent("r", 100, {"small": "draft:1"}, "", now_s=0.0, by_s=9.0)
    read.record_answer(message(base=100, confidence={"lookup": 0.5}))
    read.record_answer(message(base=100))
    assert read.unread("r", 100, "draft:1", 1.0) == 100
    read.record_answer(message(base=100, confidence={"small": 0.5}))
    assert read.unread("r", 100, "draft:1", 1.0) == 0


def test_a_few_tokens_are_no_reading():
    read = sent()
    read.record_answer(message(base=100, confidence={"small": 0.5, "other": 0.5}))
    read.record_sent("r", 108, HOMES, "fuse", now_s=1.0, by_s=9.0)
    assert not read.reading("draft:1", 1.0)
    assert read.is_awaited("r", "draft:2", 1.0) and not read.is_awaited("r", "draft:3", 1.0)
    read.record_sent("r", 130, {"small": "draft:3"}, "draft:3", now_s=1.0, by_s=9.0)
    assert read.reading("draft:3", 1.0) == {"r": 130}
    read.remove("r")
    assert not read.reading("draft:3", 1.0)
