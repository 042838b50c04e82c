"""Test what beat's policy does to a verifier's batches: in a backlog of requests beside long prompts, and after it."""

import statistics
from itertools import count

from app.assembly.verifier import verifier_over
from app.beat import steer
from app.config import Settings
from app.engine.step_costs import StepCosts
from app.load import Load
from app.policy import Policy
from app.speculation.drafter_pool import DrafterPool
from app.store.memory import MemoryStore
from tests import fakes

COSTS = StepCosts({1: 0.02, 16: 0.03, 256: 0.3, 2048: 2.4})  # as a CPU takes for the default target
ROOM = 64  # requests that the verifier holds; the others are in the waiting room
STEPS_PER_TICK = 10


class Deployment:
    """A real verifier over a tiny model, requests that wait for it, and a tick of beat every few steps."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        target = fakes.served(pages=4096, max_position_embeddings=8192)
        settings = Settings(plan="off")
        self.verifier = verifier_over(settings, fakes.measured(target, COSTS), "box", self.store, owner="owner")
        self.waiting: list[str] = []
        self.policy = Policy()
        self._numbers = count()

    def submit(self, prompt_tokens: int, max_tokens: int) -> None:
        record = fakes.record([1] * prompt_tokens, max_tokens, request_id=f"r{next(self._numbers)}")
        self.store.create(record, limit=1000)
        self.waiting.append(record.id)

    def run_tick(self) -> float:
        """Run steps, then tick; return the mean rows of a step in which a prompt was read beside running sequences."""
        rows = []
        for _ in range(STEPS_PER_TICK):
            while self.waiting and len(self.verifier.sequences) < ROOM:
                request_id = self.waiting.pop(0)
                self.store.assign(request_id, self.verifier.owner)
                self.verifier.adopt([request_id])
            self.verifier.step(float("inf"))
            stepped = self.verifier.stepped
            if 0 < sum(entry.start > 0 and len(entry.tokens) == 1 for entry in stepped) < len(stepped):
                rows.append(sum(len(entry.tokens) for entry in stepped))
        load = Load(waiting_room=len(self.waiting), verifiers=(self.verifier.load(),))
        self.policy = steer(load, self.policy)
        self.verifier.follow(DrafterPool(), self.policy)
        return statistics.fmean(rows) if rows else 0.0


def test_a_backlog_gives_prompts_a_larger_part_of_each_step_until_it_is_gone() -> None:
    deployment = Deployment()
    for _ in range(3):
        deployment.submit(20, 4000)  # these decode all the time
    for _ in range(2):
        deployment.submit(3000, 4)
    calm = [deployment.run_tick() for _ in range(3)]
    assert deployment.policy.max_batch_tokens == Policy().max_batch_tokens
    for _ in range(200):
        deployment.submit(20, 2)
    deployment.submit(3000, 4)
    crowded = [deployment.run_tick() for _ in range(5)]
    assert max(crowded) > 4 / 3 * max(calm) > 0.0
    ticks = 0
    while deployment.policy.max_batch_tokens > Policy().max_batch_tokens:
        deployment.run_tick()
        ticks += 1
    assert ticks < 30 and not deployment.waiting
    while len(deployment.verifier.sequences) > 3:
        deployment.run_tick()
    deployment.submit(3000, 4)
    after = [deployment.run_tick() for _ in range(3)]
    assert max(after) < 4 / 3 * max(calm)
