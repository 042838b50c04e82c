"""Hold what a sequence's round costs the host as counts of calls, which no other work on the machine changes."""

import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from app.assembly.verifier import verifier_over
from app.config import Settings
from app.engine.early_exit.controller import EarlyExitController
from app.engine.step_costs import StepCosts
from app.fuser.fuser import Fuser
from app.pipeline import draft_here
from app.policy import Policy
from app.request import Sampling, SpeculationBounds
from app.speculation.drafter_pool import DrafterPool
from app.store.event_stream import stored_texts
from app.store.memory import MemoryStore
from app.verifier.measured_target import MeasuredTarget
from app.verifier.verifier import Verifier
from bench.scale.stand_in import FIRST_ID, StandInDrafter, StandInTarget
from tests.records import record

SEQUENCES = 16
ROUNDS = 40


class PackingStore(MemoryStore):
    """A store in memory that writes the events as the one in Redis does."""

    def commit_later(self, owner: str, events: Any, mailbox: str) -> Any:
        """Write each event, then commit."""
        for _, event in events:
            stored_texts(event)
        return super().commit_later(owner, events, mailbox)


def verifier_of(drafts: int) -> tuple[Verifier, Fuser]:
    """Run SEQUENCES requests on a stand-in that takes no time."""
    target = StandInTarget(0.0, vocab_size=49152, tokens=16384, longest=512)
    store = PackingStore()
    settings = Settings().changed(lengths=f"fixed:{drafts}", max_sequences=SEQUENCES, phrases="none", overlap="none")
    measured = MeasuredTarget(target, StepCosts({1: 0.005, 4096: 0.005}), 49152, EarlyExitController())
    verifier = verifier_over(settings, measured, "v", store, owner="o")
    fuser = Fuser([StandInDrafter(0.7)], 49152, lambda request_id: None, own=verifier.sequences.tokens)
    verifier.follow(DrafterPool(model_free=("lookup",) if drafts else (), fuser="v", alone="v"), Policy())
    for i in range(SEQUENCES):
        one = record(
            (FIRST_ID + k % 97 for k in range(100)),
            400,
            request_id=f"{i:032x}",
            sampling=Sampling(seed=i),
            speculation=SpeculationBounds(enabled=drafts > 0),
            created_s=time.time(),
        )
        store.create(one, limit=SEQUENCES)
        store.assign(one.id, "o")
        verifier.adopt([one.id])
    return verifier, fuser


def run(verifier: Verifier, fuser: Fuser) -> int:
    """Run one round; return the sequences of the step that it launches."""
    _, trees = draft_here(fuser, "v", verifier.collect())
    verifier.receive(tree for _, tree in trees)
    verifier.launch(time.time())
    verifier.commit()
    return len(verifier.stepped)


def calls_a_round(drafts: int) -> tuple[float, Counter[str]]:
    """Return the calls of a sequence's round, of Python and C functions, and those into pydantic by name."""
    verifier, fuser = verifier_of(drafts)
    for _ in range(12):
        run(verifier, fuser)
    calls = 0
    checked: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            name = frame.f_globals.get("__name__", "") if event == "call" else getattr(argument, "__module__", "")
            if "pydantic" in str(name):
                checked[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        sequences = sum(run(verifier, fuser) for _ in range(ROUNDS))
    finally:
        sys.setprofile(None)
    assert sequences == ROUNDS * SEQUENCES
    return calls / sequences, checked


@pytest.mark.parametrize(("drafts", "most"), [(0, 126), (4, 400)])
def test_a_round_validates_nothing_and_makes_few_calls(drafts: int, most: float) -> None:
    calls, checked = calls_a_round(drafts)
    assert not checked, f"validated in every round: {checked}"
    assert calls <= most
