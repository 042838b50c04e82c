"""Provide a tiny target of the compiled forward's shape, and rows of it made by the real engine."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.config import Settings
from app.engine.text.tokenizer import Tokenizer
from tests.workers.tiny import make_model
from training.data.dataset import Identity
from training.data.generate import asks, generate, load_engine
from training.data.rows import Row, RowFile, read
from training.model.student import embedding_sha256, load_target
from training.prompts.draw import DOMAINS

WIDTH, MAX_TOKENS, PROMPTS = 64, 24, 6


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a random Llama of three layers with tied weights, whose heads are wide enough to be fused."""
    folder = make_model(tmp_path_factory.mktemp("target"))  # for its tokenizer
    vocab_size = Tokenizer(folder).vocab_size
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    model, generator = LlamaForCausalLM(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def rows_file(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make PROMPTS answers of each domain, with states."""
    path = tmp_path_factory.mktemp("rows") / "generated.jsonl"
    with RowFile(path, identity(target)._asdict()) as file:
        generate(asks(DOMAINS, PROMPTS, 0), load_engine(target, Settings()), Tokenizer(target), MAX_TOKENS, file)
    return path


@pytest.fixture(scope="session")
def rows(target: Path, rows_file: Path) -> list[Row]:
    return read([rows_file], WIDTH, Tokenizer(target).vocab_size, identity(target)._asdict())


def identity(target: Path) -> Identity:
    return Identity(Tokenizer(target).sha256, embedding_sha256(load_target(target)))
