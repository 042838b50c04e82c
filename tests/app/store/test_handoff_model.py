"""No schedule and no crash breaks the hand-off of mailboxes and requests.

Three layers: the models are explored exhaustively (all interleavings, a crash or an expiry
anywhere); the real scripts run on every distinct (state, call) the exploration met and must do just
what the model does; and whole schedules run on the real scripts from an empty server, in case a
script depends on what no model shows.
"""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest
import redis

from app.messages import Status
from app.store.protocol import Outcome
from tests.app.store.explore import Call, Explorer, Step, World
from tests.app.store.models import Entry, Mail, Req, mail_step, request_step
from tests.app.store.real import RealMail, RealRequest
from tests.app.store.schedules import LAST, mail_system, request_system, two_staying, verifier

MODEL_ONLY = {"ring", "answer"}  # Celery's part


# --- what must always hold


def mail_holds(step: Step) -> None:
    mail: Mail = step.after.state
    posted = {item for item in ("a", "b") if item in mail.items + mail.taken}
    assert len(mail.items + mail.taken) == len(posted), f"an item twice: {mail}"
    if step.call is not None and step.call[0] == "take":
        assert not step.reply or step.before.state.attend == step.call[1], f"took without the lease: {step}"
    assert not mail.items or mail.attend or _reply(mail, ("forgotten",)), f"left behind: {mail}"


def mail_ends(world: World) -> None:
    mail: Mail = world.state
    if not world.is_disturbed:
        assert mail.items == () and mail.doorbells == 0, f"a wake-up was lost: {mail}"
        assert mail.taken == ("a", "b")
    everything = sorted(mail.items + mail.taken)
    for call in (("expire",), ("forgotten",), ("attend", "late"), ("take", "late", 9)):
        result = mail_step(mail, call)
        assert result is not None
        mail = result[0]
    assert mail.items == () and sorted(mail.taken) == everything, f"not recovered: {mail}"


def _reply(mail: Mail, call: Call) -> Any:
    result = mail_step(mail, call)
    assert result is not None
    return result[1]


def request_holds(step: Step) -> None:
    before, after = step.before.state, step.after.state
    length = 0
    for entry in after.entries:
        assert entry.offset == length, f"a gap or an overlap: {after.entries}"
        length += entry.size
    ends = [entry for entry in after.entries if entry.finish is not None]
    assert bool(ends) == (after.status != Status.ACTIVE)
    assert not ends or ends == [after.entries[-1]]
    assert after.entries[: len(before.entries)] == before.entries, "committed tokens changed"
    if step.call is None:
        return
    if step.call[0] == "commit":
        _, owner, *commit = step.call
        grown = after.entries[len(before.entries) :]
        assert not grown or before.owner == owner, f"a fenced owner committed: {step}"
        if step.reply == Outcome.COMMITTED:
            assert after.entries.count(Entry(commit[0], commit[1], owner, commit[2])) == 1
    if step.call[0] == "assign" and step.reply and before.owner != step.call[1]:
        assert before.owner not in before.alive, "taken from a live owner"


def request_ends(world: World) -> None:
    """Check that a new verifier can finish the request in any world, and that its text is whole."""
    req: Req = world.state._replace(alive=frozenset())
    if req.status == Status.ACTIVE:
        assert _request_reply(req, ("orphans",))
        rescue = Explorer([lambda: verifier("v9", 1)], req, request_step, lambda _: [])
        *_, last = rescue.walk(Random(0))
        req = last.after.state
    cancelled = req.status == Status.CANCELLED
    assert cancelled or (req.status == Status.DONE and req.length == LAST)
    if not world.is_disturbed:
        assert world.state.status == req.status, "somebody gave up without a cause"


def _request_reply(req: Req, call: Call) -> Any:
    result = request_step(req, call)
    assert result is not None
    return result[1]


# --- the models hold


@cache
def explored(
    build: Callable[[], Explorer],
    holds: Callable[[Step], None],
    ends: Callable[[World], None],
    stored: Callable[[Any], Any],
) -> dict[tuple[Any, Call], Step]:
    """Check every world; return one step for every distinct (state of the server, call)."""
    found: dict[tuple[Any, Call], Step] = {}

    def visit(step: Step) -> None:
        holds(step)
        if step.call is not None and step.call[0] not in MODEL_ONLY:
            found.setdefault((stored(step.before.state), step.call), step)

    assert build().explore(visit, ends) > 5000
    return found


def _stored(mail: Mail) -> Mail:
    return mail._replace(doorbells=0, taken=())


def _all_stored(req: Req) -> Req:
    return req


@pytest.mark.parametrize("system", [mail_system, two_staying])
def test_no_item_is_left_behind_or_taken_twice(system: Callable[[], Explorer]) -> None:
    assert explored(system, mail_holds, mail_ends, _stored)


def test_commits_are_exactly_once_and_never_by_a_fenced_owner() -> None:
    assert explored(request_system, request_holds, request_ends, _all_stored)


# --- and the checker would see it if they did not


def _leave_whatever_waits(mail: Mail, call: Call) -> Any:
    if call[0] == "leave" and mail.attend == call[1]:
        return mail._replace(attend=""), True
    return mail_step(mail, call)


def _take_without_a_fence(mail: Mail, call: Call) -> Any:
    if call[0] != "take":
        return mail_step(mail, call)
    state, reply = mail_step(mail._replace(attend=call[1]), call) or (mail, ())
    return state._replace(attend=mail.attend), reply


def _post_without_listing(mail: Mail, call: Call) -> Any:
    result = mail_step(mail, call)
    return (result[0]._replace(is_listed=False), result[1]) if call[0] == "post" and result else result


def _release_without_a_mark(mail: Mail, call: Call) -> Any:
    if call[0] == "release" and mail.attend == call[1]:
        return mail._replace(attend=""), False
    return mail_step(mail, call)


@pytest.mark.parametrize(
    "broken",
    [_leave_whatever_waits, _take_without_a_fence, _post_without_listing, _release_without_a_mark],
)
def test_a_broken_hand_off_is_found(broken: Callable[[Any, Call], Any]) -> None:
    with pytest.raises(AssertionError):
        mail_system(broken).explore(mail_holds, mail_ends)


def _commit_without_a_fence(req: Req, call: Call) -> Any:
    if call[0] != "commit":
        return request_step(req, call)
    state, reply = request_step(req._replace(owner=call[1]), call) or (req, None)
    return state._replace(owner=req.owner), reply


def _commit_without_comparing(req: Req, call: Call) -> Any:
    if call[0] != "commit" or req.owner != call[1] or req.status != Status.ACTIVE:
        return request_step(req, call)
    return req._replace(entries=(*req.entries, Entry(call[2], call[3], call[1], call[4]))), Outcome.COMMITTED


def _assign_from_the_living(req: Req, call: Call) -> Any:
    return request_step(req._replace(alive=frozenset()) if call[0] == "assign" else req, call)


@pytest.mark.parametrize("broken", [_commit_without_a_fence, _commit_without_comparing, _assign_from_the_living])
def test_a_broken_commit_is_found(broken: Callable[[Any, Call], Any]) -> None:
    with pytest.raises(AssertionError):
        request_system(broken).explore(request_holds, lambda world: None)


# --- the real scripts do what the models do


def test_mailbox_scripts_do_as_the_model_does(redis_client: redis.Redis) -> None:
    real = RealMail(redis_client)
    steps = {
        **explored(mail_system, mail_holds, mail_ends, _stored),
        **explored(two_staying, mail_holds, mail_ends, _stored),
    }
    for (state, call), step in steps.items():
        real.load(state)
        assert (real.call(call), real.read()) == (step.reply, _stored(step.after.state)), (state, call)
    assert {call[0] for _, call in steps} == set(RealMail.CALLS)


def test_request_scripts_do_as_the_model_does(redis_client: redis.Redis) -> None:
    real = RealRequest(redis_client)
    steps = explored(request_system, request_holds, request_ends, _all_stored)
    for (state, call), step in steps.items():
        real.load(state)
        assert (real.call(call), real.read()) == (step.reply, step.after.state), (state, call)
    assert {call[0] for _, call in steps} == set(RealRequest.CALLS)


@pytest.mark.parametrize("seed", range(8))
def test_whole_mailbox_schedules_agree_from_an_empty_server(redis_client: redis.Redis, seed: int) -> None:
    real = RealMail(redis_client)
    real.load(Mail())
    for step in mail_system().walk(Random(seed)):
        if step.call is not None and step.call[0] not in MODEL_ONLY:
            assert real.call(step.call) == step.reply
            assert real.read() == _stored(step.after.state)


@pytest.mark.parametrize("seed", range(8))
def test_whole_request_schedules_agree_from_an_empty_server(redis_client: redis.Redis, seed: int) -> None:
    real = RealRequest(redis_client)
    real.load(Req())
    for step in request_system().walk(Random(seed)):
        if step.call is not None:
            assert real.call(step.call) == step.reply
            assert real.read() == step.after.state
