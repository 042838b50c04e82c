"""Test rotation and storing; run by ../test_device.py, in a process of its own."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.layers.rotary_store import rotary_store, rotary_store_reference
from tests.kernels.device.places import DEVICE, DTYPES, TOLERANCE

POSITIONS = 50
EPSILON = 1e-3  # large enough to be missed
HEADS = [(1, 1, 16), (9, 3, 64), (20, 10, 24)]  # (H, HK, D)


def tables(head_dim):
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=POSITIONS)
    rotary = LlamaRotaryEmbedding(config).to(DEVICE)
    cos, sin = rotary(torch.zeros(1, device=DEVICE), torch.arange(POSITIONS, device=DEVICE)[None])
    return cos[0], sin[0]


def inputs(rows, heads, dtype, page_slots=4):
    """Return the arguments but for the norms; every third row is to be left alone."""
    num_heads, key_heads, head_dim = heads
    random = torch.Generator().manual_seed(rows + num_heads + head_dim)
    qkv = torch.randn(rows, (num_heads + 2 * key_heads) * head_dim, generator=random)
    pages = rows // page_slots + 3
    slots = torch.randperm(pages * page_slots, generator=random)[:rows]
    positions = torch.randint(0, POSITIONS, (rows,), generator=random)
    slots[1::3], positions[1::3] = -1, 10**8  # read, it would be far outside
    shape = (pages, page_slots, key_heads, head_dim)
    caches = [torch.full(shape, torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
    integers = [x.int().to(DEVICE) for x in (positions, slots)]
    return [qkv.to(dtype).to(DEVICE), *integers, *tables(head_dim), *caches, num_heads]


def norms(head_dim, dtype):
    random = torch.Generator().manual_seed(head_dim)
    return [(torch.rand(head_dim, generator=random) + 0.5).to(dtype).to(DEVICE) for _ in range(2)]


def done(run, arguments, *more):
    """Return (qkv, keys, values) afterwards; the arguments stay."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
    run(*copies, *more)
    for i in (1, 2, 3, 4):
        assert torch.equal(copies[i], arguments[i])
    return copies[0], copies[5], copies[6]


def check(arguments, *more):
    dtype = arguments[0].dtype
    for found, expected in zip(
        done(rotary_store, arguments, *more), done(rotary_store_reference, arguments, *more), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)
        if dtype != torch.float32:  # rounded elsewhere, many more would differ
            written = ~expected.isnan()
            assert (found == expected)[written].float().mean() > 0.98


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("normed", [False, True])
def test_rows_are_turned_and_stored(heads, normed, dtype):
    more = (*norms(heads[2], dtype), EPSILON) if normed else ()
    check(inputs(8, heads, dtype), *more)


@pytest.mark.parametrize(("rows", "page_slots"), [(1, 16), (2, 1), (17, 5)])
def test_rows_and_pages_of_any_number(rows, page_slots):
    check(inputs(rows, (2, 1, 16), torch.float32, page_slots))


def test_one_norm_without_the_other():
    q_norm, k_norm = norms(24, torch.float32)
    arguments = inputs(4, (3, 2, 24), torch.float32)
    check(arguments, q_norm, None, EPSILON)
    check(arguments, None, k_norm, EPSILON)


def test_a_row_to_leave_alone_is_left_alone():
    arguments = inputs(5, (2, 1, 16), torch.float32)
    arguments[2][:] = -1
    qkv, k, v = done(rotary_store, arguments)
    assert torch.equal(qkv, arguments[0])
    assert k.isnan().all() and v.isnan().all()


@pytest.mark.parametrize("normed", [False, True])
def test_rotation_is_that_of_llamas_module(normed):
    arguments = inputs(7, (6, 2, 32), torch.float32)
    qkv, positions, slots, cos, sin = arguments[:5]
    positions[:], slots[:] = torch.arange(7) * 7, torch.arange(7).flip(0) + 3
    weights = norms(32, torch.float32)
    q, k, v = qkv.view(7, 10, 32).split([6, 2, 2], 1)
    if normed:  # as Qwen3 does
        with torch.no_grad():
            layers = [LlamaRMSNorm(32, EPSILON).to(DEVICE) for _ in weights]
            for layer, weight in zip(layers, weights, strict=True):
                layer.weight.copy_(weight)
            q, k = layers[0](q), layers[1](k)
    q, k = apply_rotary_pos_emb(q, k, cos[positions.long()], sin[positions.long()])
    found, k_pages, v_pages = done(rotary_store, arguments, *((*weights, EPSILON) if normed else ()))
    torch.testing.assert_close(found[:, : 6 * 32], q.flatten(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:, 6 * 32 :], qkv[:, 6 * 32 :])
    torch.testing.assert_close(k_pages.flatten(0, 1)[slots.long()], k, rtol=1e-5, atol=1e-5)
    assert torch.equal(v_pages.flatten(0, 1)[slots.long()], v)
    assert k_pages.flatten(0, 1)[[0, 1, 2, 10]].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone(dtype):
    arguments = inputs(6, (9, 3, 32), dtype)
    weights = norms(32, dtype)
    together, keys, _ = done(rotary_store, arguments, *weights, EPSILON)
    for row in (0, 3, 5):
        one = [x[row : row + 1] for x in arguments[:3]]
        alone, its_keys, _ = done(rotary_store, [*one, *arguments[3:]], *weights, EPSILON)
        assert torch.equal(alone[0], together[row])
        slot = int(one[2])
        assert torch.equal(its_keys.flatten(0, 1)[slot], keys.flatten(0, 1)[slot])


def test_no_rows_are_no_work():
    arguments = inputs(4, (2, 1, 16), torch.float32)
    rotary_store(*(x[:0] for x in arguments[:3]), *arguments[3:])


def test_arguments_that_do_not_fit_are_refused():
    arguments = inputs(4, (2, 1, 16), torch.float32)
    qkv, positions, slots, cos, sin, k, v, _ = arguments
    for place, wrong in (
        (0, qkv[:, :48].contiguous()),
        (0, qkv.repeat(1, 2)[:, ::2]),
        (0, qkv.half()),
        (1, positions.long()),
        (1, positions[:3]),
        (2, slots[:3]),
        (2, slots.repeat(2)[::2]),
        (3, cos[:, :8].contiguous()),
        (3, cos.half()),
        (4, sin[:9]),
        (5, k[:1]),
        (6, v.transpose(0, 1).contiguous().transpose(0, 1)),
        (6, v.half()),
        (7, 3),
    ):
        with pytest.raises(ValueError):
            rotary_store(*arguments[:place], wrong, *arguments[place + 1 :])
    (weight, _) = norms(16, torch.float32)
    for wrong in (weight[:8], weight.half(), weight.repeat(2)[::2]):
        with pytest.raises(ValueError):
            rotary_store(*arguments, None, wrong, EPSILON)
