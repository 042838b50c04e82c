"""Hold that an arm without fusion verifies one drafter's draft a round, in the worker that it really runs."""

import pytest

from app.fuser.fuser import Fuser
from lab.deployed import without_fusion
from tests import fakes
from tests.fakes import draft_job, guessing


def test_of_two_drafts_the_one_that_promises_most_is_handed_on() -> None:
    found = {}
    for made in (Fuser, without_fusion.LoneFuser):
        fuser = made([guessing("a", 1, 3), guessing("b", 2)], fakes.VOCAB, lambda _: None)
        fuser.expect([draft_job("r", [1, 1], ("a", "b"))])
        ((_, found[made]),) = fuser.collect(float("inf"))
    assert sorted(found[Fuser].tokens) == [1, 2, 3]
    alone = found[without_fusion.LoneFuser]
    assert (alone.tokens, set(alone.proposers)) == ((1, 3), {("a",)})


def test_workers_of_such_an_arm_build_that_fuser(monkeypatch: pytest.MonkeyPatch) -> None:
    served = []

    def serve(argv: list[str] | None) -> int:
        from app.fuser.fuser import Fuser as Built

        served.append((argv, Built))
        return 0

    monkeypatch.setattr(without_fusion, "main", serve)
    assert without_fusion.run(["fuse"]) == 0
    assert served == [(["fuse"], without_fusion.LoneFuser)]
