"""Who waits for room, and how that ends, over a real Redis with nobody else there."""

import pytest

from app.messages import FinishReason, Status
from app.request import GenerateRequest
from tests.workers.records import task_record
from workers.deployment import Office
from workers.tasks.results import Outcomes
from workers.tasks.settle import Settler
from workers.tasks.waiting_tasks import Usher

ASKED = GenerateRequest(prompt="Hello", raw=True, max_tokens=4)


@pytest.fixture
def full(lone_office: Office) -> Office:
    """With room for one request, which is taken."""
    lone_office.settings = lone_office.settings.model_copy(update={"max_active_requests": 1})
    lone_office.requests.create(task_record("old"), limit=1, task="{}")
    return lone_office


def test_who_has_waited_too_long_fails_and_holds_nobody_up(full: Office) -> None:
    outcomes = Outcomes(full.celery)
    Usher(full, outcomes, patience_s=-1.0).wait(ASKED, "late", {"id": "late"})
    patient = Usher(full, outcomes, patience_s=60.0)
    patient.wait(ASKED, "next", {"id": "next"})
    patient.look()
    Settler(full, outcomes).settle("late")
    failed = full.celery.backend.get_task_meta("late")
    assert failed["status"] == "FAILURE" and "there was no room in time" in str(failed["result"])
    assert full.requests.snapshot("late").status is Status.FAILED
    assert len(full.waiting) == 1, "the other one has time"


def test_a_task_that_is_sent_again_does_not_wait_for_the_room_it_takes_itself(full: Office) -> None:
    usher = Usher(full, Outcomes(full.celery))
    assert usher.admit(ASKED, "old", {"id": "old"})
    assert not usher.admit(ASKED, "new", {"id": "new"})
    full.requests.end("old", FinishReason.CANCELLED)
    assert usher.admit(ASKED, "new", {"id": "new"})
    usher.wait(ASKED, "other", {"id": "other"})
    assert usher.admit(ASKED, "new", {"id": "new"}), "whoever waits, it is in"
