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
    sys.modules.pop("child", None)


def streams(count: int) -> Any:
    spec = importlib.util.spec_from_file_location("serve_llama", Path(ROOT / "bench" / "peers" / "serve_llama.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Streams("model.gguf", 2, count, 64)


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
