"""`tessera.compat.msa_neuron`: the usage code of the package that it stands for, and where it does better."""

import ml_dtypes
import numpy as np
import pytest
import tessera
import torch
from tensors import attention_bound, same_bits
from tessera.compat import msa_neuron

USAGE = """
import torch
from kernels import get_kernel

# revision + trust_remote_code required by kernels >= 0.15
m3msa = get_kernel(
    "jburtoft/minimax-m3-msa-neuron-kernels",
    revision="v1.0.0",
    trust_remote_code=True,
)

# MiniMax-M3 shape, BF16, single-node prefill.
B, S, H_q, H_kv, D = 1, 8192, 64, 4, 128
q = torch.randn(B, S, H_q, D, dtype=torch.bfloat16, device="neuron")
k = torch.randn(B, S, H_kv, D, dtype=torch.bfloat16, device="neuron")
v = torch.randn(B, S, H_kv, D, dtype=torch.bfloat16, device="neuron")

# kv_indices: [B, num_q_blocks, TOPK] int32, -1 sentinels for unused slots.
kv_indices = m3msa.build_block_kv_indices(keep_mask, topk=16)

out = m3msa.block_sparse_gqa_prefill(q, k, v, kv_indices)
# out: [B, S, H_q, D] bfloat16
"""
CONTEXT_PARALLEL = """
# Each rank owns half of the KV cache. Indices for KV blocks not owned by
# this rank must be set to the sentinel -1 in the local kv_indices tensor.
o_r, l_r, m_r = m3msa.block_sparse_gqa_prefill_state(
    q, k_shard, v_shard, kv_indices_local,
)
"""
MERGE = "out = m3msa.cp_merge(states, output_dtype=torch.bfloat16)"


def for_this_package(code: str, seq: int) -> str:
    start, end = code.index("from kernels"), code.index(")\n", code.index("get_kernel(")) + 2
    code = code[:start] + "from tessera.compat import msa_neuron as m3msa\n" + code[end:]
    return code.replace('device="neuron"', 'device="cpu"').replace("8192", str(seq))


def causal_keep_mask(blocks: int, topk: int = 16, seed: int = 0) -> torch.Tensor:
    """bool [1, nQ, N]: a query block's own block, and others before it at random."""
    dice = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(seed))
    dice = dice.masked_fill(torch.ones(blocks, blocks).triu(1).bool(), -1).fill_diagonal_(2)
    kept = torch.zeros(blocks, blocks, dtype=torch.bool).scatter_(1, dice.topk(min(topk, blocks)).indices, True)
    return (kept & (dice >= 0))[None]


def tensors(dtype, s_q, s_k=None, heads=4, kv_heads=2, dim=32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (1, s_q, heads, dim), (1, s_k or s_q, kv_heads, dim), (1, s_k or s_q, kv_heads, dim)
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]


def error_over_bound(q, k, v, kv_indices, out) -> float:
    """Against the f32 reference, of torch tensors."""
    wide = [x.float().numpy() for x in (q, k, v)]
    return attention_bound(msa_neuron.dense_gqa_reference, *wide, kv_indices.numpy(), out.float().numpy(), "bf16")


def test_usage():
    torch.manual_seed(0)
    names = {"keep_mask": causal_keep_mask(3)}
    exec(for_this_package(USAGE, 384), names)
    out = names["out"]
    assert out.shape == (1, 384, 64, 128)
    assert out.dtype == torch.bfloat16
    assert names["kv_indices"].shape == (1, 3, 16)
    assert error_over_bound(*(names[n] for n in ("q", "k", "v", "kv_indices")), out) < 1


@pytest.mark.parametrize("ranks", [2, 3])
def test_usage_for_context_parallel(ranks):
    torch.manual_seed(0)
    names = {"torch": torch, "m3msa": msa_neuron}
    q, k, v = (torch.randn(1, 640, h, 128, dtype=torch.bfloat16) for h in (8, 2, 2))
    kv_indices = msa_neuron.build_block_kv_indices(causal_keep_mask(5, topk=4), topk=4)
    states, owner = [], torch.arange(5) * ranks // 5
    for rank in range(ranks):
        owned = (kv_indices >= 0) & (owner[kv_indices] == rank)
        local = kv_indices.masked_fill(~owned, msa_neuron.SENTINEL)
        rest = (owner != rank).repeat_interleave(128)[None, :, None, None]
        shard = [x.masked_fill(rest, torch.nan) for x in (k, v)]  # the keys of other ranks are not there
        exec(
            CONTEXT_PARALLEL,
            names | dict(zip(("q", "k_shard", "v_shard", "kv_indices_local"), (q, *shard, local), strict=True)),
            state := {},
        )
        states.append(tuple(state[n] for n in ("o_r", "l_r", "m_r")))
        nobody = ~owned.any(-1).repeat_interleave(128, dim=1)
        for part, empty in zip(states[-1], (0, 0, -torch.inf), strict=True):
            assert part.dtype == torch.float32
            assert (part[nobody] == empty).all()
    names["states"] = states
    exec(MERGE, names)
    out = names["out"]
    assert out.dtype == torch.bfloat16
    assert error_over_bound(q, k, v, kv_indices, out) < 1
    lse = tessera.block_sparse_gqa_prefill(q, k, v, kv_indices, return_lse=True)[1]
    torch.testing.assert_close(
        torch.logsumexp(torch.stack([l.log() + m for _, l, m in states]), 0), lse, rtol=0, atol=1e-4
    )


def test_a_sentinel_is_absent():
    q, k, v = tensors(np.float32, 384)
    v[...] = 1
    ids = np.full((1, 3, 16), -1, np.int32)
    ids[0, :, 0] = [0, 1, 2]
    # Zero-filled slots would take 15 exp(0) of the weight and leave less than 1.
    np.testing.assert_allclose(msa_neuron.block_sparse_gqa_prefill(q, k, v, ids), 1, rtol=1e-5)
    v[...] = tensors(np.float32, 384)[2]
    out = msa_neuron.block_sparse_gqa_prefill(q, k, v, ids)
    assert same_bits(out, msa_neuron.block_sparse_gqa_prefill(q, k, v, ids[..., :1]))
    assert same_bits(out, msa_neuron.block_sparse_gqa_prefill(q, k, v, ids[..., ::-1].copy()))
    alone = [torch.from_numpy(x[:, 256:]).transpose(1, 2) for x in (q, k, v)]
    last = torch.nn.functional.scaled_dot_product_attention(*alone, is_causal=True, enable_gqa=True).transpose(1, 2)
    np.testing.assert_allclose(out[:, 256:], last.numpy(), rtol=1e-4, atol=1e-5)


def test_a_list_is_a_set():
    q, k, v = tensors(np.float32, 256)
    ids = np.array([[[0, -1, -1, -1], [0, 1, -1, -1]]], np.int32)
    messy = np.array([[[7, 0, 0, 1], [0, 1, 0, -5]]], np.int32)  # block 1 lies behind all queries of the first list
    assert same_bits(
        msa_neuron.block_sparse_gqa_prefill(q, k, v, messy), msa_neuron.block_sparse_gqa_prefill(q, k, v, ids)
    )


@pytest.mark.parametrize("block", [0, 2])
def test_a_single_query_block(block):
    """Any block size, D and width; a KV head per query head; the rows that the prefill gives for that block."""
    q, k, v = tensors(np.float32, 96, heads=3, kv_heads=3, dim=24)
    ids = np.array([0, 2, -1, 1, 2], np.int32)
    rows = slice(32 * block, 32 * block + 32)
    heads_first = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q[:, rows], k, v)]
    out = msa_neuron.block_sparse_attention_single_q(*heads_first, ids, block_size=32, q_offset=rows.start)
    expected = msa_neuron.dense_gqa_reference(q, k, v, np.broadcast_to(ids, (1, 3, 5)), block_size=32)
    np.testing.assert_allclose(out, expected[0, rows].swapaxes(0, 1), 1e-4, 1e-5)
    if block == 2:
        assert same_bits(out, msa_neuron.block_sparse_attention_single_q(*heads_first, ids, block_size=32))


@pytest.mark.parametrize("scale", [0.3, -1.0])
def test_the_scale_is_honoured(scale):
    q, k, v = tensors(np.float32, 256)
    ids = np.array([[[0, -1], [0, 1]]], np.int32)
    expected = msa_neuron.dense_gqa_reference(q, k, v, ids, softmax_scale=scale)
    np.testing.assert_allclose(
        msa_neuron.block_sparse_gqa_prefill(q, k, v, ids, softmax_scale=scale), expected, 1e-4, 1e-5
    )
    state = msa_neuron.block_sparse_gqa_prefill_state(q, k, v, ids, softmax_scale=scale)
    np.testing.assert_allclose(msa_neuron.cp_merge([state], np.float32), expected, 1e-4, 1e-5)


@pytest.mark.parametrize(("s_q", "s_k"), [(1, 1), (100, 100), (128, 128), (300, 300), (40, 300), (1, 257)])
def test_any_length(s_q, s_k):
    q, k, v = tensors(ml_dtypes.bfloat16, s_q, s_k)
    ids = np.broadcast_to(np.arange(3, dtype=np.int32), (1, -(-s_q // 128), 3))
    out = msa_neuron.block_sparse_gqa_prefill(q, k, v, ids)
    assert out.dtype == ml_dtypes.bfloat16
    assert attention_bound(msa_neuron.dense_gqa_reference, q, k, v, ids, out, "bf16") < 1
    state = msa_neuron.block_sparse_gqa_prefill_state(q, k, v, ids)
    merged = msa_neuron.cp_merge([state], ml_dtypes.bfloat16)
    assert attention_bound(msa_neuron.dense_gqa_reference, q, k, v, ids, merged, "bf16") < 1


def test_a_shard_without_its_place_is_refused():
    q, k, v = tensors(np.float32, 256)
    ids = np.zeros((1, 2, 1), np.int32)
    with pytest.raises(ValueError, match="prefill_state: k has 128 keys for 256 queries; .*q_offset"):
        msa_neuron.block_sparse_gqa_prefill_state(q, k[:, :128], v[:, :128], ids)
    with pytest.raises(ValueError, match="k has 1 axes"):
        msa_neuron.block_sparse_gqa_prefill_state(q, k[0, :, 0, 0], v, ids)
    with pytest.raises(TypeError, match="q is"):
        msa_neuron.block_sparse_gqa_prefill_state(None, k, v, ids)


def test_names():
    values = {"BS": 128, "D": 128, "H_Q": 64, "H_KV": 4, "TOPK": 16, "LNC_DEGREE": 2, "SENTINEL": -1}
    for name in msa_neuron.__all__:
        if name in values:
            assert getattr(msa_neuron, name) == values[name]
        else:
            assert getattr(msa_neuron, name).__doc__
    assert np.array_equal(msa_neuron.build_causal_block_mask(2), [[0, -np.inf], [0, 0]])
