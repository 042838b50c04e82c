"""Test a step's mail: one message a mailbox, and no work on stale jobs."""

from app.drafter.drafter import in_time
from app.messages import DraftJob, ToDrafter, ToFuser, ToVerifier, TreeMessage
from app.request import Sampling
from app.speculation.jobs import DraftDispatcher, jobs_by_mailbox
from app.speculation.routing import Route
from tests import fakes
from workers.deployment import trees_by_mailbox


def job(request_id: str, *, to: str = "draft:d", due_s: float = 10.0, is_last: bool = False) -> DraftJob:
    return DraftJob(
        request_id=request_id,
        verifier="verify:v",
        to=to,
        fuser="fuse",
        base=1,
        start=0,
        tokens=(1,),
        prompt_length=1,
        max_draft_tokens=4,
        drafters=("a",),
        sampling=Sampling(),
        due_s=due_s,
        is_last=is_last,
    )


def tree(request_id: str) -> TreeMessage:
    return TreeMessage(request_id=request_id, base=1, tokens=(), parents=(), survival=(), proposers=())


def test_every_mailbox_gets_one_message_with_all_its_jobs() -> None:
    jobs = [job("a"), job("b", to="fuse"), job("c"), job("d", to="draft:e")]
    assert jobs_by_mailbox(jobs, "fuse") == {
        "draft:d": ToDrafter(jobs=(jobs[0], jobs[2])),
        "fuse": ToFuser(jobs=(jobs[1],)),
        "draft:e": ToDrafter(jobs=(jobs[3],)),
    }
    trees = [("v", tree("a")), ("w", tree("b")), ("v", tree("c"))]
    assert trees_by_mailbox(trees) == {
        "v": [ToVerifier(trees=(trees[0][1], trees[2][1]))],
        "w": [ToVerifier(trees=(trees[1][1],))],
    }


def test_a_job_carries_all_that_its_round_was_given() -> None:
    route = Route(("a",), {"a": "draft:d"}, "draft:d")
    (job,) = DraftDispatcher("verify:v").jobs(fakes.sequence([1]), route, 4, 9.0, step_s=0.5)
    assert (job.step_s, job.due_s, job.max_draft_tokens) == (0.5, 9.0, 4)
    assert DraftJob.read(job.json()) == job, "and nothing that no receiver knows"


def test_stale_jobs_are_dropped_and_every_end_is_received() -> None:
    jobs = [
        job("late", due_s=4.9),
        job("due", due_s=5.0),
        job("early", due_s=5.1),
        job("over", due_s=0.0, is_last=True),
    ]
    assert [one.request_id for one in in_time(jobs, 5.0)] == ["early", "over"]
