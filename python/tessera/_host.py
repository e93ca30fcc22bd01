"""Host helpers around the index lists, in NumPy: for preparing small inputs and for checking, not for speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera._tensors import from_numpy, to_numpy

if TYPE_CHECKING:
    import numpy as np


def build_block_kv_indices(keep_mask: Any, topk: int) -> Any:
    """The index lists of `block_sparse_gqa_prefill` from a mask of kept blocks.

    Args:
        keep_mask: bool [B, nQ, N], or [B, Hkv, nQ, N] for lists per KV head; torch, NumPy or DLPack.
        topk: W, the width of a list.

    Returns:
        int32 [..., nQ, topk] of the mask's kind: ascending ids, then -1.

    Raises:
        ValueError: wrong rank, or more kept blocks in a row than topk; TypeError: a mask that is not bool.

    Source: ops.build_block_kv_indices of minimax-m3-msa-neuron-kernels.
    """
    import numpy as np

    op = "build_block_kv_indices"
    mask = to_numpy(keep_mask)
    if mask.dtype != np.bool_:
        raise TypeError(f"{op}: keep_mask is {mask.dtype}; expected bool")
    if mask.ndim not in (3, 4):
        raise ValueError(f"{op}: keep_mask has {mask.ndim} axes; expected [B, nQ, N] or [B, Hkv, nQ, N]")
    if topk < 0:
        raise ValueError(f"{op}: topk is {topk}; expected at least 0")
    kept = mask.sum(axis=-1)
    if (kept > topk).any():
        raise ValueError(f"{op}: topk is {topk}; a row of keep_mask keeps {kept.max()} blocks")
    *rows, blocks = np.nonzero(mask)
    slot = np.cumsum(mask, axis=-1)[mask] - 1
    indices = np.full((*mask.shape[:-1], topk), -1, np.int32)
    indices[(*rows, slot)] = blocks
    return from_numpy(indices, keep_mask)


def build_causal_block_mask(BS: int) -> np.ndarray:
    """The additive causal mask inside a block, to be added to scores.

    Args:
        BS: tokens of the block.

    Returns:
        NumPy f32 [BS, BS], query by key: 0 where the key is at or before the query, else -inf.

    Raises:
        ValueError: a negative size; TypeError: not an int.

    Source: ops.build_causal_block_mask of minimax-m3-msa-neuron-kernels.
    """
    import numpy as np

    return np.triu(np.full((BS, BS), -np.inf, np.float32), k=1)


def dense_gqa_reference(
    q: Any,
    k: Any,
    v: Any,
    kv_indices: Any,
    *,
    block_size: int = 128,
    causal: bool = True,
    softmax_scale: float | None = None,
) -> Any:
    """`block_sparse_gqa_prefill` in plain f32 NumPy: dense scores, then a mask. Shares no code with the library.

    Args:
        q: [B, Sq, Hq, D], any floating dtype; computed in f32.
        k: [B, Sk, Hkv, D].
        v: [B, Sk, Hkv, Dv].
        kv_indices: [B, nQ, W] or [B, Hkv, nQ, W], nQ = ceil(Sq/block_size); -1 for an unused slot.
        block_size: tokens per KV block and per query block.
        causal: a query sees keys at positions up to its own, the last query meeting the last key.
        softmax_scale: factor on the scores; None: 1/sqrt(D).

    Returns:
        out f32 [B, Sq, Hq, Dv] of q's kind. Rows without a selected, visible key are 0.

    Raises:
        ValueError: kv_indices whose shape does not fit; TypeError: kv_indices that are not int32.

    Source: ops.dense_gqa_reference of minimax-m3-msa-neuron-kernels.
    """
    import numpy as np

    qf, kf, vf = (to_numpy(t).astype(np.float32) for t in (q, k, v))
    lists = to_numpy(kv_indices)
    (batch, sq, hq, d), (sk, hkv, dv) = qf.shape, vf.shape[1:]
    if lists.dtype != np.int32:
        raise TypeError(f"dense_gqa_reference: kv_indices is {lists.dtype}; expected int32")
    if lists.ndim == 3:
        lists = np.broadcast_to(lists[:, None], (batch, hkv, *lists.shape[1:]))
    if lists.shape[:-1] != (batch, hkv, -(-sq // block_size)):
        raise ValueError(
            f"dense_gqa_reference: kv_indices has shape {np.shape(kv_indices)}; expected [B, nQ, W] or [B, Hkv, nQ, W]"
        )
    scale = np.float32(d**-0.5 if softmax_scale is None else softmax_scale)
    position = np.arange(sk - sq, sk)[:, None]
    block = np.arange(sk) // block_size
    out = np.zeros((batch, sq, hq, dv), np.float32)
    for b, h in np.ndindex(batch, hq):
        group = h // (hq // hkv)
        rows = np.repeat(lists[b, group], block_size, axis=0)[:sq]
        seen = (rows[:, :, None] == block).any(axis=1)
        if causal:
            seen &= np.arange(sk) <= position
        scores = np.where(seen, qf[b, :, h] @ kf[b, :, group].T * scale, np.float32(-np.inf))
        top = scores.max(axis=1, keepdims=True, initial=-np.inf)
        p = np.exp(scores - np.where(np.isneginf(top), np.float32(0), top))
        out[b, :, h] = _weighted_sum(p, seen, vf[b, :, group]) / np.maximum(p.sum(axis=1, keepdims=True), 1e-30)
    return from_numpy(out, q)


def _weighted_sum(p: np.ndarray, seen: np.ndarray, v: np.ndarray) -> np.ndarray:
    """p @ v in which an unseen value is absent even if it is not a finite number."""
    import numpy as np

    finite = np.isfinite(v)
    out = p @ np.where(finite, v, np.float32(0))
    for row in np.nonzero(seen @ ~finite.all(axis=1))[0]:
        out[row] = p[row, seen[row]] @ v[seen[row]]
    return out
