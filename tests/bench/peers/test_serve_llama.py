"""Test the streams over llama.cpp: what each batch holds, over a stand-in for the library that says the token after
the last one."""

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.config import ROOT

VOCAB = 32
Batches = list[tuple[int, int, int, bool]]  # stream, position, token, is its logit wanted


class Library:
    """The functions of llama_cpp that are called, over one cache: {stream: {position: token}}."""

    def __init__(self) -> None:
        self.cache: dict[int, dict[int, int]] = {}
        self.batches: list[Batches] = []
        self.wish = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.wish

    def llama_vocab_n_tokens(self, vocab: object) -> int:
        return VOCAB

    def llama_batch_init(self, tokens: int, embeddings: int, streams: int) -> Any:
        fields = ("token", "pos", "logits", "n_seq_id")
        return SimpleNamespace(**{name: [0] * tokens for name in fields}, seq_id=[[0] for _ in range(tokens)])

    def llama_memory_seq_rm(self, memory: object, stream: int, first: int, end: int) -> bool:
        held = self.cache.get(stream, {})
        self.cache[stream] = {position: token for position, token in held.items() if position < first}
        return True

    def llama_decode(self, context: object, batch: Any) -> int:
        self.last: Batches = [
            (batch.seq_id[i][0], batch.pos[i], batch.token[i], bool(batch.logits[i])) for i in range(batch.n_tokens)
        ]
        for stream, position, token, _ in self.last:
            held = self.cache.setdefault(stream, {})
            assert position == len(held), "each position once, in order"
            held[position] = token
        self.batches.append(self.last)
        return 0

    def llama_get_logits_ith(self, context: object, i: int) -> Any:
        _, _, token, is_wanted = self.last[i]
        assert is_wanted
        self.logits = np.zeros(VOCAB, np.float32)
        self.logits[(token + 1) % VOCAB] = 1.0
        return self.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    found = Library()
    monkeypatch.setitem(sys.modules, "llama_cpp", found)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(ROOT / "bench" / "peers")
    yield found
    for name in ("child", "serve_llama"):
        sys.modules.pop(name, None)


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(ROOT / "bench" / "peers" / f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def streams(count: int) -> Any:
    return script("serve_llama").Streams("model.gguf", 2, count, 64)


def test_all_prompts_go_on_together_a_token_of_each_a_step(library: Library) -> None:
    assert streams(3).run([[1, 2], [5], [7, 8, 9]], 3) == [[3, 4, 5], [6, 7, 8], [10, 11, 12]]
    assert [len(batch) for batch in library.batches] == [6, 3, 3]
    assert [stream for stream, _, _, is_wanted in library.batches[0] if is_wanted] == [0, 1, 2]


def test_a_stream_keeps_what_the_next_prompt_begins_with(library: Library) -> None:
    model = streams(2)
    model.run([[1, 2, 3], [1, 2, 4]], 2)
    library.batches.clear()
    assert model.run([[1, 2, 5, 6]], 2) == [[7, 8]]
    assert library.batches[0] == [(0, 2, 5, False), (0, 3, 6, True)]
    assert library.cache[1] == {}, "an idle stream holds nothing"


def test_the_same_prompt_again_runs_its_last_token(library: Library) -> None:
    model = streams(1)
    assert model.run([[1, 2, 3]], 2) == model.run([[1, 2, 3]], 2) == [[4, 5]]
    assert library.batches[2] == [(0, 2, 3, True)]


class Lone:
    """A stream that says the token after the last one, but for the places where it errs."""

    def __init__(self, errs_at: tuple[int, ...] = (), chance: float = 1.0) -> None:
        self.tokens: list[int] = []
        self.reads: list[int] = []
        self._errs_at, self._sure = errs_at, np.log(chance / (1 - chance + 1e-9) * (VOCAB - 1))

    @property
    def held(self) -> int:
        return len(self.tokens)

    def begin(self, prompt: list[int]) -> None:
        self.tokens = []

    def keep(self, tokens: int) -> None:
        del self.tokens[tokens:]

    def read(self, tokens: list[int], wanted: int) -> list[np.ndarray]:
        self.tokens += tokens
        self.reads.append(len(tokens))
        ends = range(len(self.tokens) - wanted, len(self.tokens))
        return [self._sure * np.eye(VOCAB)[(self.tokens[i] + 1 + (i + 1 in self._errs_at)) % VOCAB] for i in ends]


@pytest.mark.parametrize(("errs_at", "chance"), [((), 1.0), ((9,), 1.0), ((6, 7, 20), 1.0), ((), 0.5)])
def test_a_draft_model_changes_no_token(library: Library, errs_at: tuple[int, ...], chance: float) -> None:
    target, draft = Lone(), Lone(errs_at, chance)
    assert script("serve_llama_draft").decode(target, draft, [3, 4, 5], 40) == [(6 + i) % VOCAB for i in range(40)]
    if chance == 0.5:
        assert target.reads == [3, *[1] * 39], "where the draft model is unsure nothing is drafted"
    elif not errs_at:
        assert target.reads == [3 + 16, 1 + 16, 1 + 5], "sixteen at most, and none beyond the end"
