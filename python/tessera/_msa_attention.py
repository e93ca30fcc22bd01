"""Attention with a list of blocks per token and KV head, as MiniMax-M3 attends, and of a single query block.

Letters as in `_ops`; R = total_q rows of all requests together, P pages, ps tokens per page.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def msa_sparse_attention(
    q: Array,
    k: Array,
    v: Array,
    q2k_indices: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    block_size: int = 128,
    causal: bool = True,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    return_softmax_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    backend: str = "native",
) -> Array | tuple[Array, Array]:
    """Attention of each row over the keys of its own blocks, a list per row and KV head: softmax(scale * q k^T) v.

    Several requests in one call, of any lengths: prefill, decode, or a mix of both. The rows of all requests lie one
    after the other; keys do so too (`cu_seqlens_k`), or lie in pages (`page_table` and `seqused_k`): key j of request b
    is slot j % ps of page page_table[b, j // ps]. A block may span several pages, or a page hold several blocks.

    Lists are sets, absent keys have no weight, and bits do not depend on threads, as in `block_sparse_gqa_prefill`; nor
    do they on the other rows and requests, nor on how the keys are stored.

    Args:
        q: [R, Hq, D], bf16, f16 or f32. Any strides with a unit stride along D; likewise k, v and out.
        k: [total_k, Hkv, D], or in pages [P, Hkv, ps, D], or both in the packed layout of
            `append_kv`; q's dtype, or bf16 or f16 under f32 queries. Hq is a multiple of Hkv.
        v: [total_k, Hkv, Dv], or in pages [P, Hkv, ps, Dv]; k's dtype.
        q2k_indices: int32 [Hkv, R, W], block ids within the row's request; ids of no block are skipped.
        cu_seqlens_q: int32 [B + 1], rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) are request b's. A request whose rows
            would lie outside q or overlap an earlier one's is empty; a row of no request gives 0, lse -inf.
        cu_seqlens_k: int32 [B + 1], likewise for keys; excludes page_table and seqused_k.
        page_table: int32 [B, max_pages]; keys behind a page outside [0, P) are absent. Entries past a request's last
            page are not read.
        seqused_k: int32 [B], keys of each request, cut to max_pages * ps; goes with page_table.
        block_size: tokens per block.
        causal: a query sees keys at positions up to its own; False: all keys of its request.
        softmax_scale: factor on the scores; None: 1/sqrt(D).
        q_offset: position of each request's first row among its keys, an int or int32 [B], may be negative; None: its
            keys - its rows, so that the last row meets the last key.
        return_softmax_lse: return (out, lse).
        out: [R, Hq, Dv] of q's dtype to write into and return; must not overlap an input. None: a new tensor.
        lse: f32 [R, Hq] to write into; written whenever given, returned if return_softmax_lse.
        backend: "native", or "reference" (plain double precision, one thread, slow).

    Returns:
        out [R, Hq, Dv], or (out, lse) with lse f32 [R, Hq], the natural logarithm of the sum of exp(scaled scores).
        New tensors are of q's kind.

    Raises:
        ValueError: shape, stride, overlap, device or option, or not exactly one form of keys; TypeError: dtype or type
        of an argument; NotImplementedError: valid, but not supported. Nothing has been written then.

    Source: the sparse attention of MiniMax-M3 (MSA, arXiv:2606.13392); layout and names of its kernels in FlashInfer
    (flashinfer.msa_ops).
    """
    return _core.msa_sparse_attention(
        q, k, v, q2k_indices, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, block_size, causal, softmax_scale,
        q_offset, return_softmax_lse, out, lse, backend,
    )  # fmt: skip


def msa_sparse_decode_attention(
    q: Array,
    k: Array,
    v: Array,
    q2k_indices: Any,
    *,
    page_table: Any,
    seqused_k: Any,
    seqlen_q: int = 1,
    block_size: int = 128,
    causal: bool = True,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    return_softmax_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    backend: str = "native",
) -> Array | tuple[Array, Array]:
    """`msa_sparse_attention` over paged keys where every request has the same number of rows, usually one.

    Args:
        q: [B * seqlen_q, Hq, D], bf16, f16 or f32: rows [b * seqlen_q, (b + 1) * seqlen_q) are request b's.
        k: [P, Hkv, ps, D], q's dtype, or bf16 or f16 under f32 queries.
        v: [P, Hkv, ps, Dv], k's dtype.
        q2k_indices: int32 [Hkv, B * seqlen_q, W].
        page_table: int32 [B, max_pages].
        seqused_k: int32 [B], keys of each request, those of its rows included.
        seqlen_q: rows per request; more than 1 for drafts that are verified together.
        block_size, causal, softmax_scale, q_offset, return_softmax_lse, out, lse, backend: as in
            `msa_sparse_attention`.

    Returns:
        out [B * seqlen_q, Hq, Dv], or (out, lse) with lse f32 [B * seqlen_q, Hq]; of q's kind.

    Raises: as `msa_sparse_attention`.

    Source: as `msa_sparse_attention`.
    """
    return _core.msa_sparse_decode_attention(
        q, k, v, q2k_indices, page_table, seqused_k, seqlen_q, block_size, causal, softmax_scale, q_offset,
        return_softmax_lse, out, lse, backend,
    )  # fmt: skip


def block_sparse_attention_single_q(
    q: Array,
    k: Array,
    v: Array,
    kv_indices: Any,
    *,
    block_size: int = 128,
    causal: bool = True,
    softmax_scale: float | None = None,
    q_offset: Any = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    backend: str = "native",
) -> Array | tuple[Array, Array]:
    """`block_sparse_gqa_prefill` of one query block, with heads first and a KV head per query head.

    Args:
        q: [H, bq, D], bf16, f16 or f32; any bq. Any strides with a unit stride along D; likewise k, v and out.
        k: [H, Sk, D], q's dtype, or bf16 or f16 under f32 queries.
        v: [H, Sk, Dv], k's dtype.
        kv_indices: int32 [W], one list of block ids for all heads, or [H, W], one per head.
        block_size: tokens per KV block.
        causal: a query sees keys at positions up to its own; False: all keys.
        softmax_scale: factor on the scores; None: 1/sqrt(D).
        q_offset: position of the first query among the keys, an int or int32 [1], may be negative; None: Sk - bq, so
            that the last query meets the last key.
        return_lse: return (out, lse).
        out: [H, bq, Dv] of q's dtype to write into and return; must not overlap an input. None: a new tensor.
        lse: f32 [H, bq] to write into; written whenever given, returned if return_lse.
        backend: "native" or "reference".

    Returns:
        out [H, bq, Dv], or (out, lse) with lse f32 [H, bq]; of q's kind.

    Raises: as `block_sparse_gqa_prefill`.

    Source: the single-query-block kernel of minimax-m3-msa-neuron-kernels.
    """
    return _core.block_sparse_attention_single_q(
        q, k, v, kv_indices, block_size, causal, softmax_scale, q_offset, return_lse, out, lse, backend
    )
