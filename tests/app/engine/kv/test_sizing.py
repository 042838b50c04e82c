import pytest

from app.config import Settings
from app.engine.kv import sizing
from app.engine.kv.sizing import available_bytes, kv_bytes, longest_tokens

GB = 10**9


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (8 * GB, 2 * GB),  # the part
        (1 * GB, GB // 2),  # one sequence at least, whatever is free
        (80 * GB, 8 * GB),  # sixteen sequences need no more
        (None, sizing.UNKNOWN_BYTES),
    ],
)
def test_the_cache_gets_its_part_within_what_sequences_need(available, expected):
    assert kv_bytes(available, 0.25, GB // 2, 16) == expected


@pytest.mark.parametrize(("context", "expected"), [(131_072, 12_096), (2048, 2048)])
def test_the_longest_sequence_is_bounded_by_settings_and_model(context, expected):
    assert longest_tokens(context, Settings(max_prompt_tokens=8000, max_tokens=4096)) == expected


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:  8000 kB\n")
    monkeypatch.setattr(sizing, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(sizing, "CGROUP", tmp_path)
    assert available_bytes() == 8000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_bytes() == 4000
    (tmp_path / "meminfo").unlink()
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes() is None
