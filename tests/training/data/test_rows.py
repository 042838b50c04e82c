"""Test files of rows: torn ends are cut off, errors name their line, held-out prompts stay held out."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.errors import InvalidRequest
from training.data.rows import RowFile, read, split, states_of

WIDTH = 4


def _append(file: RowFile, index: int, domain: str = "code") -> np.ndarray:
    states = np.full((5, WIDTH), index, np.float16)
    file.append(f"k{index}", domain, [1, 2, index], [3, 4, 5], states, is_greedy=index % 2 == 0)
    return states


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    with RowFile(tmp_path / "a.jsonl", {"seed": 1}) as file:
        written = [_append(file, i) for i in range(3)]
        file.append("text", "prose", [1], [2, 3], None, is_greedy=False, labels=[7, 8])
    rows = {row.prompt: row for row in read([tmp_path], WIDTH, 10, {})}
    assert len(rows) == 4
    for i, states in enumerate(written):
        row = rows[1, 2, i]
        assert (row.continuation, row.labels, row.is_greedy) == ((3, 4, 5), (3, 4, 5), i % 2 == 0)
        assert row.states is not None and np.array_equal(row.states, states)
    assert rows[(1,)].labels == (7, 8) and rows[(1,)].states is None


@pytest.mark.parametrize("lost", [1, 40, 60, 100])
@pytest.mark.parametrize("part", ["lines", "states"])
def test_a_torn_file_keeps_its_whole_rows_and_can_be_appended_to(tmp_path: Path, lost: int, part: str) -> None:
    path = tmp_path / "a.jsonl"
    with RowFile(path, {}) as file:
        for i in range(4):
            _append(file, i)
    torn = path if part == "lines" else states_of(path)
    torn.write_bytes(torn.read_bytes()[:-lost])
    with RowFile(path, {}) as file:
        kept = len(file.done)
        assert kept < 4 and file.done == {f"k{i}" for i in range(kept)}
        for i in range(kept, 4):
            _append(file, i)
    rows = read([path], WIDTH, 10, {})
    assert len(rows) == 4
    for row in rows:
        assert row.states is not None and (row.states == row.prompt[-1]).all()


def test_a_reader_skips_the_line_being_written(tmp_path: Path) -> None:
    with RowFile(tmp_path / "a.jsonl", {}) as file:
        _append(file, 0)
    with (tmp_path / "a.jsonl").open("a") as lines:
        lines.write('{"d": "code", "p": [')
    assert len(read([tmp_path / "a.jsonl"], WIDTH, 10, {})) == 1


def test_a_file_has_one_writer_and_one_description(tmp_path: Path) -> None:
    with RowFile(tmp_path / "a.jsonl", {"seed": 1}), pytest.raises(InvalidRequest, match="another run is writing"):
        RowFile(tmp_path / "a.jsonl", {"seed": 1})
    with pytest.raises(InvalidRequest, match="another seed"):
        RowFile(tmp_path / "a.jsonl", {"seed": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not one row"),
        ("hello\n{}\n", "line 1: not a row"),
        ('{"d": "code", "p": [1], "g": [99]}\n', "line 1: holds tokens that the target does not know"),
        ('{"d": "code", "p": [1], "g": ["x"]}\n', "line 1: holds tokens"),
        ('{"d": "code", "p": [1], "g": [2, 3], "t": [2]}\n', "not of one length"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        read([tmp_path / "a.jsonl"], WIDTH, 10, {})


def test_rows_of_another_target_are_refused(tmp_path: Path) -> None:
    with RowFile(tmp_path / "a.jsonl", {"embedding_sha256": "ours"}) as file:
        _append(file, 0)
    with pytest.raises(InvalidRequest, match="another embedding_sha256"):
        read([tmp_path], WIDTH, 10, {"embedding_sha256": "theirs"})


def test_held_out_prompts_are_the_same_in_any_data_some_of_each_domain(tmp_path: Path) -> None:
    lines = [json.dumps({"d": "code", "p": [1, i % 9, i // 9], "g": [1], "greedy": True}) for i in range(81)]
    lines += [json.dumps({"d": "qa", "p": [i], "g": [1], "greedy": True}) for i in range(2)]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    (tmp_path / "some.jsonl").write_text("\n".join(lines[:70:2]))
    kept, out = split(read([tmp_path / "all.jsonl"], WIDTH, 10, {}))
    assert len(kept) + len(out) == 83 and {row.domain for row in out} == {"code", "qa"} == {row.domain for row in kept}
    assert not {row.digest for row in kept} & {row.digest for row in out}
    _, fewer_out = split(read([tmp_path / "some.jsonl"], WIDTH, 10, {}))
    assert {row.digest for row in fewer_out} <= {row.digest for row in out}
