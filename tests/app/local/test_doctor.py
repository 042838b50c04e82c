"""Test the doctor on broken installations."""

import json
import sys
from pathlib import Path

import pytest

from app.config import Settings
from app.engine.weights.resolve import MANIFEST, fetched_folder
from app.local import doctor
from app.local.doctor import CHECKS, Finding, Level, examine
from app.local.instance import Instance, ProcessId, State
from app.system import processor

NO_WEIGHTS = (2).to_bytes(8, "little") + b"{}"  # as safetensors


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state", home=tmp_path / "home", drafters=())


def _found(settings: Settings, words: str) -> Finding:
    """Find the one finding with these words among all checks but the last, which loads torch."""
    found = examine(settings, Instance(settings.state), CHECKS[:-1])
    (finding,) = [one for one in found if words in one.text]
    return finding


def test_each_finding_prints_its_level(settings: Settings) -> None:
    for finding in examine(settings, Instance(settings.state)):
        assert str(finding).split()[0] in ("OK", "WARN", "FAIL")
        assert finding.level is not Level.FAIL or finding.mend


def test_damaged_model_fails_with_a_remedy(settings: Settings) -> None:
    folder = fetched_folder(settings.model, settings.home)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"not what was written")
    (folder / MANIFEST).write_text(json.dumps({"files": {"model.safetensors": "0" * 64}}))
    finding = _found(settings, "damaged: model.safetensors")
    assert finding.level is Level.FAIL and str(folder) in finding.mend


def test_model_that_cannot_be_served_fails(settings: Settings) -> None:
    finding = _found(settings.model_copy(update={"model": str(settings.home)}), "config.json")
    assert finding.level is Level.FAIL


def test_dead_supervisor_is_a_warning(settings: Settings) -> None:
    dead = ProcessId(pid=1, started="1")
    state = State(instance="default", supervisor=dead, url="http://x", redis_url="redis://x", namespace="n")
    Instance(settings.state).write(state)
    finding = _found(settings, "is dead")
    assert finding.level is Level.WARN and "down" in finding.mend


def test_silent_redis_fails(settings: Settings, free_port: int) -> None:
    url = f"redis://127.0.0.1:{free_port}/0"
    assert _found(settings.model_copy(update={"redis_url": url}), "PACELINE_REDIS_URL").level is Level.FAIL


def test_keys_that_cannot_be_read_fail(settings: Settings, tmp_path: Path) -> None:
    finding = _found(settings.model_copy(update={"keys": tmp_path / "keys.jsonl"}), "every call is refused")
    assert finding.level is Level.FAIL and "keys add" in finding.mend


def test_drafter_with_another_tokenizer_fails(settings: Settings, tmp_path: Path) -> None:
    target, drafter = tmp_path / "target", tmp_path / "drafter"
    for folder, text in ((target, "a"), (drafter, "b")):
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
        (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
        (folder / "tokenizer.json").write_text(text)
    wrong = settings.model_copy(update={"model": str(target), "drafters": (str(drafter),)})
    assert _found(wrong, "drafters:").level is Level.FAIL
    (drafter / "tokenizer.json").write_text("a")
    assert _found(wrong, "drafters:").level is Level.OK
    for broken in ("config.json", "drafter.json"):
        (drafter / "tokenizer.json").unlink(missing_ok=True)
        (drafter / broken).write_text("{")
        assert "cannot be loaded: JSONDecodeError" in _found(wrong, "drafters:").text
        (drafter / broken).write_text("{}")
    (drafter / "tokenizer.json").write_text("a")
    (drafter / "config.json").write_text("[" * 100_000)
    assert "cannot be loaded: RecursionError: maximum recursion" in _found(wrong, "drafters:").text


def test_folder_that_cannot_be_written_to_fails(settings: Settings, tmp_path: Path) -> None:
    assert _found(settings, "can be written to").level is Level.OK
    assert not list(tmp_path.iterdir())
    (tmp_path / "home").touch()
    finding = _found(settings, "cannot be written to")
    assert finding.level is Level.FAIL and finding.text == f"{tmp_path}/home cannot be written to: Not a directory"


UNEVEN = """
from kernels.cpu.products.packed_linear import PackedLinear, is_exact
forward = PackedLinear.forward
PackedLinear.forward = lambda self, x: forward(self, x) * (1 + 1e-6 * len(x))
print(is_exact())
"""


def test_processor_that_breaks_exactness_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = examine(settings, Instance(settings.state), CHECKS[-1:])
    assert processor() in finding.text and "does not depend on the rows beside it" in finding.text
    monkeypatch.setattr(doctor, "PROBE", UNEVEN)
    (finding,) = examine(settings, Instance(settings.state), CHECKS[-1:])
    assert finding.level is Level.WARN and "other requests" in finding.mend
    assert processor() in finding.text and "depends on the rows beside it" in finding.text


def test_processor_without_fma_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(doctor, "PROBE", "print(True)")
    for flags, level in (("fpu sse2 avx", Level.WARN), ("fpu avx2 fma", Level.OK), ("fp asimd", Level.OK)):
        doctor.CPUINFO.write_text(f"flags : {flags}\n")
        (finding,) = examine(settings, Instance(settings.state), CHECKS[-1:])
        assert finding.level is level and ("without AVX2 and FMA" in finding.text) == (level is Level.WARN)


def test_an_engine_on_vllm_is_looked_at_before_it_is_started(settings: Settings, tmp_path: Path) -> None:
    assert "Paceline's own" in _found(settings, "engine:").text
    wanted = settings.model_copy(update={"engine": "vllm"})
    assert "`up` makes first" in _found(wanted, "engine:").text
    other = wanted.model_copy(update={"vllm_python": Path(sys.executable)})
    finding = _found(other, "engine:")
    assert finding.level is Level.FAIL and "No module named 'vllm'" in finding.text and "lock" in finding.mend
    nowhere = wanted.model_copy(update={"vllm_python": tmp_path / "python"})
    assert _found(nowhere, "engine:").level is Level.FAIL
