"""The operators. Each function here documents, fills in defaults and calls; the work is done by the compiled module.

Letters: B requests, Sq/Sk query/key tokens, Hq/Hkv query/KV heads, G = Hq/Hkv, D/Dv head dimensions of keys and values,
N = ceil(Sk/block_size) KV blocks, nQ = ceil(Sq/block_q) query blocks, W entries of an index row, K selected blocks,
P pages, ps tokens per page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from tessera import _core
from tessera._tensors import float_dtype_name

Array = TypeVar("Array")


def block_sparse_gqa_prefill(
    q: Array,
    k: Array,
    v: Array,
    kv_indices: Any,
    *,
    block_size: int = 128,
    block_q: int | None = None,
    causal: bool = True,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    backend: str = "native",
) -> Array | tuple[Array, Array]:
    """Attention of each query over the keys of the listed blocks: softmax(scale * q k^T) v.

    A list is a set: ids in any order, ids outside [0, N) skipped (-1 is the usual filler), a repeated id counted once.
    A key that is not listed or not visible is absent from the arithmetic, whatever its values. A row without any
    selected, visible key gives out = 0 and lse = -inf. The same inputs give the same bits for any number of threads.

    Args:
        q: [B, Sq, Hq, D], bf16, f16 or f32. Any strides with a unit stride along D; likewise k, v and out.
        k: [B, Sk, Hkv, D], or in pages [P, Hkv, ps, D], or both in the packed layout of
            `append_kv`; q's dtype, or bf16 or f16 under f32 queries. Hq is a multiple of Hkv.
        v: [B, Sk, Hkv, Dv], or in pages [P, Hkv, ps, Dv]; k's dtype.
        kv_indices: int32 [B, nQ, W], one list of block ids per query block for all heads, or [B, Hkv, nQ, W], one per
            KV head.
        block_size: tokens per KV block.
        block_q: query tokens that share a list; None: block_size; 1: a list per token.
        causal: a query sees keys at positions up to its own; False: all keys.
        softmax_scale: factor on the scores; None: 1/sqrt(D).
        q_offset: position of the first query of each request among its keys, an int or int32 [B], may be negative;
            None: keys - Sq, so that the last query meets the last key.
        page_table: int32 [B, max_pages]: key j of request b is slot j % ps of page page_table[b, j // ps]; keys behind
            a page outside [0, P) are absent. None: k and v are not in pages.
        seqused_k: int32 [B], keys of each request, cut to max_pages * ps; goes with page_table.
        return_lse: return (out, lse).
        out: [B, Sq, Hq, Dv] of q's dtype to write into and return; must not overlap an input. None: a new tensor.
        lse: f32 [B, Sq, Hq] to write into; written whenever given, returned if return_lse.
        backend: "native", or "reference" (plain double precision, one thread, slow).

    Returns:
        out [B, Sq, Hq, Dv], or (out, lse) with lse f32 [B, Sq, Hq], the natural logarithm of the sum of exp(scaled
        scores). New tensors are of q's kind: torch for torch, NumPy for NumPy (bfloat16 as ml_dtypes.bfloat16), and so
        on.

    Raises:
        ValueError: shape, stride, overlap, device or option; TypeError: dtype or type of an argument;
        NotImplementedError: valid, but not supported. Nothing has been written then.

    Source: names and index format of the MSA prefill kernels of MiniMax-M3 (minimax-m3-msa-neuron-kernels); online
    softmax after FlashAttention-2 (arXiv:2307.08691).
    """
    return _core.block_sparse_gqa_prefill(
        q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset, page_table, seqused_k, return_lse, out,
        lse, backend,
    )  # fmt: skip


def block_sparse_gqa_prefill_state(
    q: Array,
    k: Array,
    v: Array,
    kv_indices: Any,
    *,
    block_size: int = 128,
    block_q: int | None = None,
    causal: bool = True,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    out: tuple[Array, Array, Array] | None = None,
    backend: str = "native",
) -> tuple[Array, Array, Array]:
    """`block_sparse_gqa_prefill` that stops before the division, for keys that are split over several holders.

    Each holder passes its shard of k and v, ids local to the shard (-1 for the others'), and
    q_offset = global position of its first query - global position of its first key. `cp_merge` joins the states.

    Args:
        q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset, page_table, seqused_k, backend: as in
            `block_sparse_gqa_prefill`.
        out: (o, l, m) as below to write into and return; must not overlap an input. None: new tensors.

    Returns:
        (o [B, Sq, Hq, Dv], l [B, Sq, Hq], m [B, Sq, Hq]), f32, of q's kind: m the maximum of the scaled scores,
        l the sum of exp(s - m), o the sum of exp(s - m) v. A row without keys gives (0, 0, -inf).

    Raises: as `block_sparse_gqa_prefill`.

    Source: the state kernel of minimax-m3-msa-neuron-kernels.
    """
    return _core.block_sparse_gqa_prefill_state(
        q, k, v, kv_indices, block_size, block_q, causal, softmax_scale, q_offset, page_table, seqused_k,
        out, backend,
    )  # fmt: skip


def cp_merge(
    states: Sequence[tuple[Array, Array, Array]], output_dtype: Any, *, out: Any = None, backend: str = "native"
) -> Array:
    """The attention output over disjoint shards of keys, from the state of each.

    out = sum_i o_i exp(m_i - M) / sum_i l_i exp(m_i - M) with M = max m_i, summed in the order given. A shard with
    m = -inf or l = 0 weighs nothing, whatever its o; if all do, out = 0.

    Args:
        states: at least one (o [..., Dv], l [...], m [...]), f32, all of the same shapes, rank of o 1 to 5.
        output_dtype: dtype of the result: a NumPy scalar type (ml_dtypes.bfloat16 included) or a torch dtype;
            bf16, f16 or f32.
        out: [..., Dv] of output_dtype to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        out [..., Dv] of the kind of the first state's o.

    Raises:
        ValueError: no states, or shapes that differ; TypeError: dtype.

    Source: cp_merge of minimax-m3-msa-neuron-kernels.
    """
    return _core.cp_merge(states, float_dtype_name("cp_merge", "output_dtype", output_dtype), out, backend)


def merge_states(
    partials: Sequence[tuple[Array, Array]], *, out: tuple[Array, Array] | None = None, backend: str = "native"
) -> tuple[Array, Array]:
    """The attention output and LSE over disjoint shards of keys, from the normalised output and LSE of each.

    Summed in the order given. A partial with lse = -inf weighs nothing, even if its data are NaN; if all do, out = 0
    and lse = -inf.

    Args:
        partials: at least one (out [..., Dv] in bf16, f16 or f32, lse f32 [...]), all of the same shapes and dtype.
            LSEs are natural logarithms.
        out: (out, lse) as below to write into and return; must not overlap an input. None: new tensors.
        backend: "native" or "reference".

    Returns:
        (out [..., Dv] in the partials' dtype, lse f32 [...]) of the kind of the first partial.

    Raises:
        ValueError: no partials, or shapes that differ; TypeError: dtype.

    Source: the recurrence of FlashAttention-2 (arXiv:2307.08691) between blocks, applied between shards.
    """
    return _core.merge_states(partials, out, backend)


def moba_select(
    q: Array,
    k: Array,
    *,
    topk: int,
    block_size: int = 128,
    block_q: int = 1,
    local_blocks: int = 1,
    init_blocks: int = 0,
    q_offset: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """Selects KV blocks by the mean of their keys; needs no training.

    The score of a block is the mean of q . mean(keys of the block) over the query block's rows and the group's heads.
    The `local_blocks` blocks up to and including the query's own and the first `init_blocks` are always in; then higher
    score first, equal scores by lower id, NaN last. Only blocks that some row of the query block can see are listed; if
    these are no more than topk, all of them are.

    Args:
        q: [B, Sq, Hq, D], bf16, f16 or f32.
        k: [B, Sk, Hkv, D], or in pages [P, Hkv, ps, D]; q's dtype.
        topk: K, the number of blocks to select, the forced ones included.
        block_size: tokens per KV block.
        block_q: query tokens that share a list.
        local_blocks: blocks that end with the query's own and are always in.
        init_blocks: blocks at the start that are always in.
        q_offset: position of the first query of each request, an int or int32 [B]; None: its keys - Sq.
        page_table, seqused_k: as in `block_sparse_gqa_prefill`. Keys behind an invalid page are absent; a block without
            any has the lowest score.
        out: int32 [B, Hkv, nQ, K] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        int32 [B, Hkv, nQ, K] of q's kind: ascending ids, left-packed, then -1; ready to be `kv_indices` of
        `block_sparse_gqa_prefill` with the same block_size and block_q.

    Raises:
        ValueError: shape, stride or option; TypeError: dtype or type of an argument.

    Source: the gate of MoBA (arXiv:2502.13189).
    """
    return _core.moba_select(
        q, k, topk, block_size, block_q, local_blocks, init_blocks, q_offset, page_table, seqused_k, out,
        backend,
    )  # fmt: skip


def mass_select(
    q: Array,
    k: Array,
    *,
    topk: int,
    block_size: int = 64,
    block_q: int = 64,
    stride: int = 8,
    local_blocks: int = 1,
    init_blocks: int = 1,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """Selects KV blocks by the attention that sampled rows pay to them; needs no training.

    Rows 0, stride, 2 stride, ... and the last of a query block, in all heads of the group, take an exact softmax over
    their visible keys; the score of a block is the sum of its probabilities. Forced blocks, preference and output as in
    `moba_select`.

    Args:
        q: [B, Sq, Hq, D], bf16, f16 or f32.
        k: [B, Sk, Hkv, D], or in pages [P, Hkv, ps, D]; q's dtype.
        topk: K, the number of blocks to select, the forced ones included.
        block_size: tokens per KV block.
        block_q: query tokens that share a list.
        stride: distance in tokens between sampled rows; 1 samples every row.
        local_blocks: blocks that end with the query's own and are always in.
        init_blocks: blocks at the start that are always in.
        softmax_scale: factor on the scores; None: 1/sqrt(D).
        q_offset: position of the first query of each request, an int or int32 [B]; None: its keys - Sq.
        page_table, seqused_k: as in `block_sparse_gqa_prefill`. Keys behind an invalid page are absent; a block without
            any has a score of 0.
        out: int32 [B, Hkv, nQ, K] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        int32 [B, Hkv, nQ, K] of q's kind: ascending ids, left-packed, then -1.

    Raises:
        ValueError: shape, stride or option; TypeError: dtype or type of an argument.

    Source: query sampling after SampleAttention (arXiv:2406.15486), summed per block.
    """
    return _core.mass_select(
        q, k, topk, block_size, block_q, stride, local_blocks, init_blocks, softmax_scale, q_offset, page_table,
        seqused_k, out, backend,
    )  # fmt: skip
