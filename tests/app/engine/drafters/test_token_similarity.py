import pytest
import torch
from safetensors.torch import save_file

from app.engine.drafters.token_similarity import embedding_agreement
from app.errors import ModelRefused


def test_agreement_is_the_mean_cosine_of_the_embeddings(tmp_path):
    rows = torch.tensor([[1.0, 0.0], [0.0, 3.0], [-2.0, 0.0], [2.0, 2.0]])
    save_file({"model.embed_tokens.weight": rows}, tmp_path / "model.safetensors")
    agreement = embedding_agreement(tmp_path)
    assert agreement([0], [0]) == pytest.approx(1.0)
    assert agreement([0], [2]) == pytest.approx(0.0)
    assert agreement([0, 0], [1, 3]) == pytest.approx((0.5 + (1 + 0.5**0.5) / 2) / 2, abs=1e-3)
    assert agreement([], []) == 0.0


def test_a_target_without_an_embedding_by_that_name_is_refused(tmp_path):
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused):
        embedding_agreement(tmp_path)
