"""Test how rows in company are compared with the same rows alone, and the bar that counts them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not made for this machine")
from app.engine.gpu.runner import ChosenRows, DeviceRunner
from app.engine.kv.block_manager import PagedRunner
from app.engine.kv.pages import PagePool
from app.state import BatchEntry
from bench.gpu.random_steps import ROWS, RandomSteps, Sizes
from bench.gpu.sections import bars
from bench.gpu.setting import Setting

VOCAB = 8
SIZES = Sizes(sequences=4, prompt=20, text=60, nodes=3, has_branches=False)


class Runner(PagedRunner):
    """A runner whose logits follow from their tokens, and whose last bits from the number of entries, if `differs`."""

    def __init__(self, differs: bool) -> None:
        super().__init__(PagePool(20, 16), shares=False)
        self.pages = SimpleNamespace(keys=torch.zeros(1, 20), values=torch.zeros(1, 20))
        self.differs = differs
        self.buffer = torch.zeros(64, VOCAB)
        self.chains = True

    def forward(self, works: list[BatchEntry]) -> list[ChosenRows | None]:
        found: list[ChosenRows | None] = []
        self.buffer.fill_(torch.nan)  # the last step's rows are gone
        first = 0
        for work in works:
            self.chains &= work.tree.is_chain
            count = 1 + len(work.tree)
            rows = self.buffer[first : first + count]
            rows.copy_(torch.eye(VOCAB)[[work.tokens[-1], *work.tree.tokens]])
            if self.differs and len(works) > 2:
                rows[:, 0] += 2.0
            found.append(ChosenRows([], rows, []) if work.final else None)
            first += count
        return found

    def accept(self, work: BatchEntry, path: list[int]) -> None:
        self._keep(work, work.start + len(work.tokens) + len(path))

    def _clear(self, pages: list[int]) -> None:
        pass


@pytest.mark.parametrize("differs", [False, True])
def test_rows_are_compared_with_the_same_rows_alone(differs: bool) -> None:
    together, alone = (cast(DeviceRunner, Runner(differs)) for _ in range(2))
    compared = RandomSteps([together, alone], VOCAB, SIZES, apart=alone).run(60, lambda: True)
    assert compared.rows > 200 and compared.moved == 0
    assert cast(Runner, together).chains
    assert (0 < compared.flips < compared.rows_with_other_bits < compared.rows) == differs
    assert bool(compared.rows_with_other_bits) == differs


@pytest.mark.parametrize(("rows", "others", "holds"), [(ROWS, 0, True), (ROWS, 1, False), (ROWS - 1, 0, None)])
def test_exact_mode_is_held_to_ten_thousand_rows(rows: int, others: int, holds: bool | None) -> None:
    company = {"rows": rows, "rows_with_other_bits": others, "flips_per_10000": 0.0}
    mode = {"rows_with_other_bits": 0, "flips": {"tokens": 9, "alone again": {"flips_per_10000": 0.0}}}
    exact = {"exact": mode | {"in company": company}, "default": {"in company": {"flips_per_10000": 7.5}}}
    found: dict[str, Any] = {}
    bars.measure(Setting(torch.device("cpu"), False, None, {"exact": {"1B": exact, "seconds": 1.0}}), found)
    assert found["1B, exact mode: rows of 10000 with other bits, and flips"]["holds"] is holds
    assert found["1B, default mode: flips per 10,000 rows in company"]["measured"] == 7.5
