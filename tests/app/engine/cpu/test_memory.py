"""Test what a loaded model holds: no embedding expanded, none twice, and none of its file's pages."""

import gc
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from app.config import Activations, WeightsAs
from app.engine.cpu.fused import FusedForward
from app.engine.cpu.load import Source, load
from app.engine.weights.blocks import EMBEDDING, dense
from app.engine.weights.gguf import describe
from app.engine.weights.hf_reader import read
from app.engine.weights.resolve import GGUF
from app.engine.weights.tensors import Stored, embedding_sha256, end_loading, stored_embedding
from tests import fakes
from tests.app.engine.weights.ggufs import write
from tests.app.engine.weights.test_gguf_file import last_row

VOCAB = 4096  # so large that the embedding is nearly all of the model
FLOATS = VOCAB * 32 * 4  # bytes of the embedding in float32
IDS = list(range(3, 33))


def tied() -> PreTrainedModel:
    """Make a tiny model whose head is its embedding, and of which only that is written."""
    model = fakes.tiny(vocab_size=VOCAB, max_position_embeddings=64, tie_word_embeddings=True)
    state = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    model.state_dict = lambda: state  # type: ignore[assignment,method-assign]
    return model


def served(
    model: PreTrainedModel, folder: Path, kind: str, wanted: WeightsAs = "stored", activations: Activations = "float32"
) -> FusedForward:
    """Write a model with matrices of this type, and load it as a later start does."""
    folder.mkdir(exist_ok=True)
    write(model, folder / GGUF, (kind,))
    describe(folder / GGUF, folder)
    load(folder, wanted, folder, activations)
    forward = load(folder, wanted, folder, activations)
    assert isinstance(forward, FusedForward)
    return forward


def assert_same(kind: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Weights of integers are the same numbers, but their products are added up in another order."""
    if kind.startswith("Q"):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(found, expected), "the same bits"


def held_bytes(forward: FusedForward) -> int:
    return sum(array.nbytes for array in forward._held.values() if array.nbytes > FLOATS // 8)


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_a_tied_embedding_of_integers_is_held_once_for_any_activations(
    activations: Activations, tmp_path: Path
) -> None:
    forward = served(tied(), tmp_path, "Q8_0", activations=activations)
    assert forward._model.embedding == forward._model.head
    assert held_bytes(forward) == pytest.approx(34 / 128 * FLOATS, rel=0.01)


@pytest.mark.parametrize(("kind", "share"), [("Q8_0", 34 / 128), ("Q4_0", 18 / 128), ("F16", 0.5), ("F32", 1.0)])
def test_a_tied_embedding_is_held_once_and_as_its_file_has_it(kind: str, share: float, tmp_path: Path) -> None:
    forward = served(tied(), tmp_path, kind)
    assert forward._model.embedding == forward._model.head
    assert held_bytes(forward) == pytest.approx(share * FLOATS, rel=0.01)
    whole = load(tmp_path, "float32")
    assert_same(kind, last_row(forward, IDS), last_row(whole, IDS))


def test_a_tied_head_of_safetensors_is_held_once(tmp_path: Path) -> None:
    fakes.tiny(vocab_size=VOCAB, max_position_embeddings=64, tie_word_embeddings=True).to(
        torch.bfloat16
    ).save_pretrained(tmp_path)
    load(tmp_path, "stored", tmp_path)
    forward = load(tmp_path, "stored", tmp_path)
    assert isinstance(forward, FusedForward) and forward._model.embedding == forward._model.head
    assert held_bytes(forward) == FLOATS // 2


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "BF16"])
def test_an_embedding_beside_another_head_keeps_its_type(kind: str, tmp_path: Path) -> None:
    forward = served(fakes.tiny(vocab_size=VOCAB, max_position_embeddings=64), tmp_path, kind)
    assert forward._model.embedding != forward._model.head
    assert held_bytes(forward) < 1.2 * FLOATS, "two of half the size, or less"
    assert_same(kind, last_row(forward, IDS), last_row(load(tmp_path, "float32"), IDS))


def test_an_embedding_is_not_expanded_where_linear_layers_are_rounded(tmp_path: Path) -> None:
    forward = served(fakes.tiny(vocab_size=VOCAB, max_position_embeddings=64), tmp_path, "F16", "q8_0")
    assert held_bytes(forward) == pytest.approx((0.5 + 34 / 128) * FLOATS, rel=0.01)


def test_the_drafters_of_a_process_share_their_targets_embedding(tmp_path: Path) -> None:
    served(fakes.tiny(vocab_size=VOCAB, max_position_embeddings=64), tmp_path, "Q8_0")
    assert stored_embedding(tmp_path) is stored_embedding(tmp_path)
    weights = {**Stored(tmp_path), EMBEDDING: stored_embedding(tmp_path)}
    source = Source((tmp_path,), lambda: weights, lambda: read(tmp_path))
    one, other = load(source), load(source)
    assert isinstance(one, FusedForward) and isinstance(other, FusedForward)
    assert one._model.embedding == other._model.embedding


def test_the_embeddings_hash_is_that_of_its_floats(tmp_path: Path) -> None:
    write(fakes.tiny(vocab_size=VOCAB + 7), tmp_path / GGUF, ("Q8_0",))
    floats = dense(Stored(tmp_path)[EMBEDDING]).numpy()
    assert embedding_sha256(tmp_path) == hashlib.sha256(floats.astype("<f4").tobytes()).hexdigest()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_files_pages_are_given_back(tmp_path: Path) -> None:
    write(tied(), tmp_path / GGUF, ("Q8_0",))
    stored = Stored(tmp_path)
    before = dense(stored[EMBEDDING]).numpy().copy()
    gc.collect()
    assert mapped_bytes(tmp_path / GGUF) > FLOATS // 8
    end_loading(tmp_path)
    assert mapped_bytes(tmp_path / GGUF) == 0
    assert np.array_equal(dense(stored[EMBEDDING]).numpy(), before), "and are read again"


def mapped_bytes(file: Path) -> int:
    """Return the bytes of a file that this process has in memory."""
    found, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = line.endswith(str(file))
        elif is_ours and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found
