"""Test the host buffers that a step's arrays are written to."""

import torch

from app.engine.gpu.input_batch import Arrays

FIELDS = {"ids": (torch.int32, (4,)), "rows": (torch.int64, (2,))}


class Copy:
    """Stand in for the event behind a buffer's copy: tell what the buffer held when it was waited for."""

    def __init__(self, arrays: Arrays, buffer: int) -> None:
        self.waited: list[int] = []
        self._ids = arrays._views[buffer]["ids"]

    def synchronize(self) -> None:
        self.waited.append(int(self._ids[0]))


def test_a_buffer_is_written_when_its_last_copy_is_over_and_the_other_one_meanwhile():
    arrays = Arrays(FIELDS, torch.device("cpu"), buffers=2)
    copies = [Copy(arrays, buffer) for buffer in (0, 1)]
    arrays._copied[:] = copies
    for step in range(1, 5):
        host = arrays.turn()
        host["ids"][:] = step
        arrays.send("ids", 4)
        assert arrays.device["ids"].tolist() == [step] * 4
    assert [copy.waited for copy in copies] == [[0, 2], [0, 1]], "each by itself, before it is written again"


def test_no_more_is_sent_than_a_step_needs():
    arrays = Arrays(FIELDS, torch.device("cpu"))
    host = arrays.turn()
    host["ids"][:], host["rows"][:] = 7, 9
    sent = arrays.send("ids", 2)
    assert sent == 8 and arrays.device["ids"].tolist() == [7, 7, 0, 0] and arrays.device["rows"].tolist() == [0, 0]
