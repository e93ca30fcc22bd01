"""The host helpers."""

import ml_dtypes
import numpy as np
import pytest
import tessera
import torch
from tensors import KINDS, Problem, as_kind


@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 3, 5, 7)])
def test_lists_from_a_mask(shape):
    mask = np.random.default_rng(0).random(shape) < 0.4
    mask[0, ..., 1, :] = False
    ids = tessera.build_block_kv_indices(mask, 7)
    assert ids.dtype == np.int32
    assert ids.shape == (*shape[:-1], 7)
    for at in np.ndindex(shape[:-1]):
        kept = np.flatnonzero(mask[at])
        assert (ids[at] == [*kept, *[-1] * (7 - len(kept))]).all()
    top = mask.sum(axis=-1).max()
    assert np.array_equal(tessera.build_block_kv_indices(mask, top), ids[..., :top])
    assert tessera.build_block_kv_indices(mask, 20).shape == (*shape[:-1], 20)
    with pytest.raises(ValueError, match=f"topk is {top - 1}; a row of keep_mask keeps {top} blocks"):
        tessera.build_block_kv_indices(mask, top - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind):
    p = Problem("f32", sq=24, sk=24)
    mask = as_kind(kind, np.ones((2, 3, 3), bool))
    q, k, v, ids = p.inputs_as(kind)
    want = type(q) if kind != "dlpack" else np.ndarray
    assert isinstance(tessera.build_block_kv_indices(mask, 4), want)
    assert isinstance(tessera.dense_gqa_reference(q, k, v, ids, block_size=8), want)


def test_bad_masks():
    with pytest.raises(TypeError, match="build_block_kv_indices: keep_mask is int64; expected bool"):
        tessera.build_block_kv_indices(np.ones((1, 1, 1), np.int64), 1)
    with pytest.raises(ValueError, match="build_block_kv_indices: keep_mask has 2 axes"):
        tessera.build_block_kv_indices(np.ones((1, 1), bool), 1)
    with pytest.raises(ValueError, match="build_block_kv_indices: topk is -1"):
        tessera.build_block_kv_indices(np.zeros((1, 1, 1), bool), -1)
    assert tessera.build_block_kv_indices(np.zeros((1, 1, 1), bool), 0).shape == (1, 1, 0)


def test_causal_block_mask():
    mask = tessera.build_causal_block_mask(3)
    inf = np.inf
    assert mask.dtype == np.float32
    assert np.array_equal(mask, [[0, -inf, -inf], [0, 0, -inf], [0, 0, 0]])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"softmax_scale": 0.3}], ids=str)
def test_dense_reference_agrees_with_double_precision(per_head, options):
    for sq, sk in ((53, 53), (20, 53), (53, 20)):
        p = Problem("f32", sq=sq, sk=sk, per_head=per_head)
        exact = tessera.block_sparse_gqa_prefill(*p.inputs, block_size=8, backend="reference", **options)
        np.testing.assert_allclose(
            tessera.dense_gqa_reference(*p.inputs, block_size=8, **options), exact, rtol=1e-4, atol=1e-5
        )


def test_dense_reference_keeps_masked_values_out():
    p = Problem("f32", sq=24, sk=24)
    clean = tessera.dense_gqa_reference(*p.inputs, block_size=8)
    used = (p.ids[:, :, :, None] == np.arange(3)).any(axis=2)  # [B, nQ, N]
    for b, n in np.ndindex(2, 3):
        if not used[b, :, n].any():
            p.k[b, 8 * n : 8 * n + 8] = np.nan
            p.v[b, 8 * n : 8 * n + 8] = np.inf
    p.k[:, 23] = np.nan  # seen by the last query alone
    p.v[:, 23] = np.inf
    dirty = tessera.dense_gqa_reference(*p.inputs, block_size=8)
    assert np.array_equal(dirty[:, :23], clean[:, :23])


def test_dense_reference_takes_bfloat16():
    p = Problem("bf16", sq=24, sk=24)
    assert tessera.dense_gqa_reference(*p.inputs, block_size=8).dtype == np.float32
    assert p.q.dtype == ml_dtypes.bfloat16
    assert tessera.dense_gqa_reference(*p.inputs_as("torch"), block_size=8).dtype == torch.float32


def test_dense_reference_refuses_other_lists():
    p = Problem("f32", sq=24, sk=24)
    with pytest.raises(TypeError, match="dense_gqa_reference: kv_indices is int64"):
        tessera.dense_gqa_reference(p.q, p.k, p.v, p.ids.astype(np.int64), block_size=8)
    with pytest.raises(ValueError, match="dense_gqa_reference: kv_indices has shape"):
        tessera.dense_gqa_reference(p.q, p.k, p.v, p.ids, block_size=4)
