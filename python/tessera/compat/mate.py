"""The QSA entry points of MATE on CPUs.

    from tessera.compat import mate

takes the place of `import mate`; tensors are torch CPU tensors or NumPy arrays, in bf16, f16 or f32.

`backend="tilelang"`, the default, runs tessera's kernels and `backend="reference"` its plain oracle. Any other is a
ValueError, as is every inconsistent call; metadata of another dtype than int32 is a TypeError.

Limits of the original's kernels that do not exist here: 4 heads of 128 features; pages of 8, 16, 32 or 64 keys; packed rows
and paged keys in `qsa_indexer_mqa_score`; 16-byte alignment of addresses and strides; one row per request in
`qsa_mqa_decode`; in `qsa_sparse_attention` 256 features, groups of 16 heads, keys in pages for packed rows and for splits,
and axes that collapse to rows. Views of any strides with a unit stride along the features are read in place.

`tessera` has the same functions with more options (weights per head, lengths of keys), and `qsa_select`, which needs no
memory for scores and gives the token lists themselves (`tessera.qsa_select_tokens`).
"""

from __future__ import annotations

from typing import Any

import tessera

__all__ = ["qsa_indexer_mqa_score", "qsa_mqa", "qsa_mqa_decode", "qsa_mqa_prefill", "qsa_sparse_attention"]

_BACKENDS = {"tilelang": "native", "reference": "reference"}


def _backend(op: str, name: Any) -> str:
    if not isinstance(name, str) or name not in _BACKENDS:
        raise ValueError(f"{op}: backend is {name!r}; expected 'tilelang' or 'reference'")
    return _BACKENDS[name]


def qsa_indexer_mqa_score(
    q_idx: Any,
    block_keys: Any,
    *,
    block_table: Any = None,
    page_size: int | None = None,
    cu_seqlens_q: Any = None,
    token_to_req: Any = None,
    num_requests: int | None = None,
    query_positions: Any = None,
    seq_lens_q: Any = None,
    block_size: int = 4,
    scale: float | None = None,
    score_scale: float | None = None,
    backend: str = "tilelang",
) -> Any:
    """The score of every block for every row: `tessera.qsa_indexer_mqa_score`.

    Args:
        q_idx: [B, Q, Hi, D], or packed [total_q, Hi, D].
        block_keys: compressed keys [B, N, D]; with block_table pages [P, ps, 1, D] or [P, ps, D].
        block_table: int32 [B, max_pages].
        page_size: ps, if it is to be checked.
        cu_seqlens_q: int32 [B + 1], bounds of the requests among packed rows.
        token_to_req: int32 [total_q], the request of each packed row.
        num_requests: B, if it is to be checked.
        query_positions: int32 [B, Q] or [total_q]; None: a row's index within its request.
        seq_lens_q: int32 [B], rows that count.
        block_size: tokens per block.
        scale: positive factor; None: 1/sqrt(D).
        score_scale: positive divisor; excludes scale.
        backend: "tilelang", which runs tessera's kernels, or "reference".

    Returns:
        f32 [B, Q, N] or [total_q, N], -inf for a block whose last token is not visible.

    Raises:
        ValueError: another backend; the rest as `tessera.qsa_indexer_mqa_score`.
    """
    return tessera.qsa_indexer_mqa_score(
        q_idx,
        block_keys,
        block_table=block_table,
        page_size=page_size,
        cu_seqlens_q=cu_seqlens_q,
        token_to_req=token_to_req,
        num_requests=num_requests,
        query_positions=query_positions,
        seq_lens_q=seq_lens_q,
        block_size=block_size,
        scale=scale,
        score_scale=score_scale,
        backend=_backend("qsa_indexer_mqa_score", backend),
    )


def qsa_mqa_prefill(
    q: Any,
    k: Any,
    row_starts: Any,
    row_ends: Any,
    score_scale: float | None = None,
    *,
    scale: float | None = None,
    backend: str = "tilelang",
) -> Any:
    """The scores of packed rows over shared keys, each row within its interval: `tessera.qsa_mqa_prefill`.

    Args:
        q: [rows, heads, dim].
        k: [keys, dim] or [keys, 1, dim].
        row_starts, row_ends: int32 [rows], the keys [start, end) that a row sees.
        score_scale: positive divisor; excludes scale.
        scale: positive factor; None: 1/sqrt(dim).
        backend: "tilelang", which runs tessera's kernels, or "reference".

    Returns:
        f32 [rows, keys], -inf outside the interval.

    Raises:
        ValueError: another backend; the rest as `tessera.qsa_mqa_prefill`.
    """
    backend = _backend("qsa_mqa_prefill", backend)
    return tessera.qsa_mqa_prefill(q, k, row_starts, row_ends, score_scale, scale=scale, backend=backend)


qsa_mqa = qsa_mqa_prefill


def qsa_mqa_decode(
    q: Any,
    k_cache: Any,
    page_table: Any,
    context_lens: Any,
    max_model_len: int,
    score_scale: float | None = None,
    *,
    scale: float | None = None,
    backend: str = "tilelang",
) -> Any:
    """The scores of one row per request over its pages: `tessera.qsa_mqa_decode`.

    Args:
        q: [B, heads, dim] or [B, 1, heads, dim].
        k_cache: [P, ps, 1, dim] or [P, ps, dim].
        page_table: int32 [B, max_pages]; keys behind a page outside [0, P) are -inf.
        context_lens: int32 [B], keys that a request sees.
        max_model_len: width of the result, in keys.
        score_scale: positive divisor; excludes scale.
        scale: positive factor; None: 1/sqrt(dim).
        backend: "tilelang", which runs tessera's kernels, or "reference".

    Returns:
        f32 [B, max_model_len], -inf where a key is not seen.

    Raises:
        ValueError: another backend; the rest as `tessera.qsa_mqa_decode`.
    """
    backend = _backend("qsa_mqa_decode", backend)
    return tessera.qsa_mqa_decode(
        q, k_cache, page_table, context_lens, max_model_len, score_scale, scale=scale, backend=backend
    )


def qsa_sparse_attention(
    query: Any,
    key: Any,
    value: Any,
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
    backend: str = "tilelang",
    warp_specialized: bool = False,
    assume_compact_blocks: bool = False,
    out: Any = None,
    selected_kv_indices: Any = None,
    softmax_scale: float | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    compute_dtype: Any = "torch.bfloat16",
    lse: Any = None,
) -> Any:
    """Attention of each row over the tokens of its list: `tessera.qsa_sparse_attention`.

    Args:
        query: [B, Q, Hq, D], or packed [total_q, Hq, D].
        key: [B, Sk, Hkv, D]; with cu_seqlens_k packed [total_k, Hkv, D]; with block_table pages [P, ps, Hkv, D]; with
            selected_kv_indices [slots, Hkv, D].
        value: as key.
        token_indices: int32 [B, Q, W] or [total_q, W], ids within the request; invalid and future ones are skipped.
        block_indices: int32 [B, Q, K] or [total_q, K], K from 1 to 512 and W = 4 * K + 3. A hint without effect.
        cu_seqlens_q: int32 [B + 1], bounds of the requests among packed rows.
        token_to_req: int32 [total_q], the request of each packed row.
        num_requests: B, if it is to be checked.
        cu_seqlens_k: int32 [B + 1], bounds of the requests among packed keys.
        seq_lens_q: int32 [B], rows that count.
        seq_lens_k: int32 [B], tokens that exist, cut to what the tensors hold.
        query_positions: int32 [B, Q] or [total_q]; None: the last row of a request stands at its last token.
        block_table: int32 [B, max_pages].
        page_size: ps, if it is to be checked.
        scale: factor on the scores; None: 1/sqrt(D).
        gate: [B, Q, Hq, Dv] or [B, Q, Hq], or packed; the rounded result is multiplied by its sigmoid.
        num_splits: None chooses; n cuts each list into n parts; 1 does not cut.
        return_lse: return (out, lse).
        warp_specialized, assume_compact_blocks: hints without effect.
        out: where to write the result; any view that does not overlap itself or an input, with a unit feature stride.
        selected_kv_indices: int32 [total_q, W], rows of key and value in place of token_indices.
        softmax_scale: another name for scale.
        k_scale, v_scale: 1.
        compute_dtype: torch.bfloat16, which stands for query's dtype, or that dtype itself. The default is given by its
            name, so that torch need not be there. Any other, FP8 among them, is a NotImplementedError.
        lse: f32 [B, Q, Hq] or [total_q, Hq] to write into, whether it is returned or not.
        backend: "tilelang", which runs tessera's kernels, or "reference".

    Returns:
        out, shaped like query with Dv features, or (out, lse): f32, the natural logarithm of the sum of exp(scores). Rows
        without a token give 0 and -inf.

    Raises:
        ValueError: another backend; the rest as `tessera.qsa_sparse_attention`.
    """
    return tessera.qsa_sparse_attention(
        query,
        key,
        value,
        token_indices,
        block_indices=block_indices,
        cu_seqlens_q=cu_seqlens_q,
        token_to_req=token_to_req,
        num_requests=num_requests,
        cu_seqlens_k=cu_seqlens_k,
        seq_lens_q=seq_lens_q,
        seq_lens_k=seq_lens_k,
        query_positions=query_positions,
        block_table=block_table,
        page_size=page_size,
        scale=scale,
        gate=gate,
        num_splits=num_splits,
        return_lse=return_lse,
        backend=_backend("qsa_sparse_attention", backend),
        warp_specialized=warp_specialized,
        assume_compact_blocks=assume_compact_blocks,
        out=out,
        selected_kv_indices=selected_kv_indices,
        softmax_scale=softmax_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        compute_dtype=None if str(compute_dtype) == "torch.bfloat16" else compute_dtype,
        lse=lse,
    )
