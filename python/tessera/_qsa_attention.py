"""The attention of QSA: each row over the tokens of its own list, which all its heads share.

Letters: B requests, Q rows of a request, R rows of all requests, Hq/Hkv heads, D/Dv their dimensions, W entries of a list,
P pages of ps tokens.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def qsa_sparse_attention(
    query: Array,
    key: Array,
    value: Array,
    token_indices: Any = None,
    *,
    block_indices: Any = None,
    cu_seqlens_q: Any = None,
    token_to_req: Any = None,
    num_requests: int | None = None,
    cu_seqlens_k: Any = None,
    seq_lens_q: Any = None,
    seq_lens_k: Any = None,
    query_positions: Any = None,
    block_table: Any = None,
    page_size: int | None = None,
    scale: float | None = None,
    gate: Any = None,
    num_splits: int | None = None,
    return_lse: bool = False,
    backend: str = "native",
    warp_specialized: bool = False,
    assume_compact_blocks: bool = False,
    out: Any = None,
    selected_kv_indices: Any = None,
    softmax_scale: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    compute_dtype: Any = None,
    lse: Any = None,
) -> Array | tuple[Array, Array]:
    """Attention of each row over the tokens that its list names: softmax(scale * q k^T) v, times sigmoid(gate).

    Prefill, decode, or a mix of both in one call. Rows are a batch or packed; keys and values a batch, packed, in pages of
    any size, or rows that the lists name directly. A list may have any order and width. Ids count within the request. One
    that is negative, after the row's position, not below the request's length or behind a page outside [0, P) is skipped;
    one that stands twice counts twice. Where nothing is left, and in rows of no request, out is 0 and lse -inf. What no
    list names has no weight and is not read: NaN there changes nothing.

    Bits depend on the row, the tokens that its list names, their order and `num_splits`. Skipped ids, the form of the call,
    what else is in it and the number of threads change none; with selected_kv_indices the last digit may differ.

    Args:
        query: [B, Q, Hq, D], or packed [R, Hq, D]; bf16, f16 or f32. Any strides with a unit stride along the features;
            likewise key, value and out.
        key: [B, Sk, Hkv, D]; with cu_seqlens_k packed [total_k, Hkv, D]; with block_table pages [P, ps, Hkv, D] or, in the
            packed layout of `append_kv`, [P, Hkv, ceil(D/e), ps, e]; with selected_kv_indices [slots, Hkv, D] or slots of
            such packed pages. query's dtype. Hq is a multiple of Hkv.
        value: as key, with Dv in place of D; of the packed layout [P, Hkv, ceil(ps/e), Dv, e].
        token_indices: int32 [B, Q, W] or [R, W], any W and strides; what `qsa_select_tokens` returns.
        block_indices: int32 [B, Q, K] or [R, K], the blocks of 4 tokens that token_indices were made of. A hint for other
            backends: only that 1 <= K <= 512 and W = 4 * K + 3 is checked, and no result depends on it.
        cu_seqlens_q: int32 [B + 1], for packed rows: rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) are request b's. A
            request whose rows would lie outside query or overlap an earlier one's is empty.
        token_to_req: int32 [R], for packed rows: each row's request; outside [0, B): none. Rows of a request need not lie
            together. May be given beside cu_seqlens_q. Packed rows of one request need neither.
        num_requests: B, if it is to be checked.
        cu_seqlens_k: int32 [B + 1], bounds of the requests among packed keys.
        seq_lens_q: int32 [B], rows of each request that count.
        seq_lens_k: int32 [B], tokens of each request, cut to what the tensors hold; None: all that they hold.
        query_positions: int32 [B, Q] or [R], positions within the request; None: the last row of a request stands at its
            last token.
        block_table: int32 [B, max_pages]: token t of request b is row t % ps of page block_table[b, t // ps].
        page_size: ps, if it is to be checked. In the packed layout the tokens of an entry of block_table, a multiple n ps of
            ps: entry i then names pages [n i, n (i + 1)), so that pages of 4 tokens, the fastest, serve tables of larger
            ones. None: ps.
        scale: factor on the scores; None: 1/sqrt(D).
        gate: [B, Q, Hq, Dv] or [B, Q, Hq], or packed; query's dtype or f32. out, rounded, is multiplied by its sigmoid.
        num_splits: parts that each list is cut into, at least 1 (no cut); None: by its length.
        return_lse: return (out, lse).
        backend: "native", or "reference" (plain double precision, one thread, slow).
        warp_specialized, assume_compact_blocks: hints for other backends, without effect.
        out: [B, Q, Hq, Dv] or [R, Hq, Dv] of query's dtype to write into and return; must not overlap an input.
        selected_kv_indices: int32 [R, W] in place of token_indices, for packed rows: rows of key and value themselves. Only
            ids outside [0, slots) are skipped, and neither gate nor anything that tells requests apart is given.
        softmax_scale: another name for scale.
        k_scale, v_scale: 1; keys and values are not quantised.
        compute_dtype: query's dtype, or None. Sums are f32 in any case.
        lse: f32 [B, Q, Hq] or [R, Hq] to write into; written whenever given.

    Returns:
        out [B, Q, Hq, Dv] or [R, Hq, Dv], or (out, lse) with lse f32, without the last axis: the natural logarithm of the
        sum of exp(scaled scores), which the gate leaves alone. New tensors are of query's kind.

    Raises:
        ValueError: shape, stride, overlap, device, scaling or option; TypeError: dtype or type of an argument;
        NotImplementedError: valid, but not supported. Nothing has been written then.

    Source: the attention of Qwen4-Exp (Qwen Sparse Attention): 24 heads over 2, D 256, 2,051 tokens; signature of MATE.
    """
    return _core.qsa_sparse_attention(
        query, key, value, token_indices, block_indices, cu_seqlens_q, token_to_req, num_requests, cu_seqlens_k,
        seq_lens_q, seq_lens_k, query_positions, block_table, page_size, scale, gate, num_splits, return_lse, backend,
        warp_specialized, assume_compact_blocks, out, selected_kv_indices, softmax_scale, k_scale, v_scale,
        compute_dtype, lse,
    )  # fmt: skip
