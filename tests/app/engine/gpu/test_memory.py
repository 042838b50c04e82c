"""Test the accounting of a GPU's memory with a fake allocator, which keeps freed blocks until told otherwise."""

from typing import Any

import pytest
import torch

from app.engine.gpu.memory import free_for_pages
from app.errors import ModelRefused
from tests import fakes
from tests.app.engine.gpu.fake_card import FakeCard

TOTAL, WEIGHTS = 1000, 400


class Rehearsed:
    """A runner on 20 bytes of pages that has captured graphs of 30 and run a step that took 70."""

    page_bytes = 20

    def __init__(self, memory: FakeCard) -> None:
        self.memory = memory
        memory.held["runner"] = 20 + 30
        memory.lend(70)

    def __del__(self) -> None:
        self.memory.release("runner")


@pytest.mark.parametrize("left_over", [0, 500])
def test_pages_get_what_weights_graphs_and_steps_leave(left_over: int) -> None:
    memory = FakeCard(
        TOTAL, WEIGHTS, left_over
    )  # joined weights leave blocks of their size, which are free for all but the driver
    assert free_for_pages(memory, lambda: Rehearsed(memory)) == TOTAL - WEIGHTS - 30 - 70
    assert memory.held == {"weights": WEIGHTS}, "nothing of the rehearsal stays"
    assert memory.kept_blocks == 0


def test_pages_get_nothing_where_steps_take_everything() -> None:
    memory = FakeCard(TOTAL, WEIGHTS)
    memory.held["others"] = 550

    class Large(Rehearsed):
        def __init__(self, memory: FakeCard) -> None:
            super().__init__(memory)
            memory.held["others"] -= 100  # another process ends meanwhile: there is more, not less

    assert free_for_pages(memory, lambda: Large(memory)) == 150
    memory.held["others"] = 600
    assert free_for_pages(memory, lambda: Nothing()) == 0


class Nothing:
    """A rehearsal that took nothing."""

    page_bytes = 0


def test_the_device_is_asked_after_blocks_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.engine.gpu import memory as module

    calls: list[str] = []

    def note(name: str, answer: Any = None) -> Any:
        return lambda *_: calls.append(name) or answer

    monkeypatch.setattr(module.gc, "collect", note("collect"))
    monkeypatch.setattr(module.torch.cuda, "synchronize", note("synchronize"))
    monkeypatch.setattr(module.torch.cuda, "empty_cache", note("empty"))
    monkeypatch.setattr(module.torch.cuda, "mem_get_info", note("ask", (7, 9)))
    device = module.DeviceMemory(module.torch.device("cuda"))
    device.settle()
    assert device.free_bytes() == 7
    assert calls == ["collect", "synchronize", "empty", "ask"]


@pytest.mark.parametrize(("free", "is_moved"), [(1.0, True), (0.5, False)])
def test_a_model_larger_than_the_free_memory_is_refused_before_it_is_moved(
    monkeypatch: pytest.MonkeyPatch, free: float, is_moved: bool
) -> None:
    load = pytest.importorskip("app.engine.gpu.load", reason="Triton is not made for this machine")
    model: Any = fakes.tiny(tie_word_embeddings=True)
    needed = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    card = FakeCard(int(needed * free), 0, left_over=int(needed * free))
    moved: list[torch.device] = []
    monkeypatch.setattr(load, "DeviceMemory", lambda device: card)
    monkeypatch.setattr(model, "to", moved.append)
    if is_moved:
        load.move(model, torch.device("cuda"))
    else:
        with pytest.raises(ModelRefused, match=r"LlamaForCausalLM needs 0\.0 GB.* 0\.0 GB free; .* one GPU"):
            load.move(model, torch.device("cuda"))
    assert moved == [torch.device("cuda")] * is_moved
