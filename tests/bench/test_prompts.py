"""Test the prompts that a caller names instead of ours."""

import argparse
import json
from pathlib import Path

import pytest

from bench.prompts import PROMPTS, add_prompts_file, read_prompts


def parsed(*words: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_prompts_file(parser)
    return parser.parse_args(words).texts


def test_first_turns_go_by_category_or_by_the_files_name(tmp_path: Path) -> None:
    rows = [{"id": 1, "category": "qa", "turns": ["Why?", "And then?"]}, {"turns": ["Write it."]}]
    file = tmp_path / "mixed.jsonl"
    file.write_text("\n\n".join(map(json.dumps, [*rows, {"category": "qa", "turns": ["How?"]}])))
    assert parsed("--prompts-file", str(file)) == {"qa": ("Why?", "How?"), "mixed": ("Write it.",)}
    assert parsed() is PROMPTS


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"turns": []}', '{"turns": [3]}', '{"turns": [" "]}', "3"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"turns": ["Fine."]}) + "\n" + line)
    with pytest.raises(argparse.ArgumentTypeError, match="line 2"):
        read_prompts(str(file))


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "none.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(argparse.ArgumentTypeError):
        read_prompts(str(file))
