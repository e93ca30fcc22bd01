"""The indexer of QSA: which blocks of tokens each row is to attend to, by scores of compressed keys.

Letters: B requests, Q rows of a request, R rows of all requests, Hi index heads, D their dimension, bs tokens per block,
N blocks, each with one compressed key, K selected blocks, P pages of ps keys.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def qsa_indexer_mqa_score(
    q_idx: Array,
    block_keys: Array,
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
    weights: Any = None,
    seq_lens_k: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The score of every block for every row: scale * sum over heads of weight * max(0, q . key of the block).

    A row at position p sees the complete blocks up to its own token: block g if g < (p + 1) // bs, if
    g < seq_lens_k[b] // bs where that is given, and if its key exists. All other scores are -inf. A NaN survives the
    maximum and reaches the scores of its row or key, no other. To select blocks, `qsa_select` needs no memory for the
    scores.

    Rows are a batch, or packed; keys are a batch, or lie in pages of any size. The same rows and keys give the same bits
    in any of these forms, whatever else is in the call and for any number of threads.

    Args:
        q_idx: index queries [B, Q, Hi, D], or packed [R, Hi, D]; bf16, f16 or f32, any Hi and D. Any strides with a unit
            stride along D; likewise block_keys.
        block_keys: compressed keys [B, N, D], q_idx's dtype; with block_table pages [P, ps, 1, D] or [P, ps, D].
        block_table: int32 [B, max_pages]: key g of request b is row g % ps of page block_table[b, g // ps]. Keys behind
            a page outside [0, P) do not exist.
        page_size: ps, if it is to be checked.
        cu_seqlens_q: int32 [B + 1], for packed rows: rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) are request b's. A
            request whose rows would lie outside q_idx or overlap an earlier one's is empty.
        token_to_req: int32 [R], for packed rows: each row's request; outside [0, B): none. Rows of a request need not lie
            together. May be given beside cu_seqlens_q. Packed rows of one request need neither.
        num_requests: B, if it is to be checked.
        query_positions: int32 [B, Q] or [R], positions within the request; None: a row's index within its request.
        seq_lens_q: int32 [B], rows of each request that count; the others see nothing.
        block_size: bs.
        scale: positive factor on the scores; None: 1/sqrt(D).
        score_scale: positive divisor in place of scale.
        weights: f32 [B, Q, Hi] or [R, Hi], a factor for each row and head, as DeepSeek's lightning indexer has; None: 1.
        seq_lens_k: int32 [B], tokens of each request, beyond which nothing is seen.
        out: f32 of the result's shape to write into and return; must not overlap an input. None: a new tensor.
        backend: "native", or "reference" (plain double precision, one thread, slow).

    Returns:
        f32 [B, Q, N] or [R, N] of q_idx's kind; N is max_pages * ps for keys in pages.

    Raises:
        ValueError: shape, stride, device, scale or option; TypeError: dtype or type of an argument; NotImplementedError:
        valid, but not supported.

    Source: the indexer of Qwen4-Exp (Qwen Sparse Attention), 4 heads of 128 and blocks of 4 tokens; signature of MATE.
    """
    return _core.qsa_indexer_mqa_score(
        q_idx, block_keys, block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions, seq_lens_q,
        block_size, scale, score_scale, weights, seq_lens_k, out, backend,
    )  # fmt: skip


def qsa_mqa_prefill(
    q: Array,
    k: Array,
    row_starts: Any,
    row_ends: Any,
    score_scale: float | None = None,
    *,
    scale: float | None = None,
    weights: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The scores of `qsa_indexer_mqa_score` for packed rows over one set of keys, of which row t sees
    [row_starts[t], row_ends[t]). Also called `qsa_mqa`.

    Args:
        q: [R, Hi, D], bf16, f16 or f32. Any strides with a unit stride along D; likewise k.
        k: keys shared by all rows and heads, [N, D] or [N, 1, D], q's dtype.
        row_starts: int32 [R]; below 0 is 0.
        row_ends: int32 [R], exclusive; above N is N.
        score_scale: positive divisor of the scores; excludes scale.
        scale: positive factor; None: 1/sqrt(D).
        weights: f32 [R, Hi], a factor for each row and head; None: 1.
        out: f32 [R, N] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        f32 [R, N] of q's kind, -inf outside a row's interval.

    Raises:
        As `qsa_indexer_mqa_score`.

    Source: as `qsa_indexer_mqa_score`.
    """
    return _core.qsa_mqa_prefill(q, k, row_starts, row_ends, score_scale, scale, weights, out, backend)


qsa_mqa = qsa_mqa_prefill


def qsa_mqa_decode(
    q: Array,
    k_cache: Array,
    page_table: Any,
    context_lens: Any,
    max_model_len: int,
    score_scale: float | None = None,
    *,
    scale: float | None = None,
    weights: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The scores of `qsa_indexer_mqa_score` for the newest rows of requests whose keys lie in pages.

    Args:
        q: [B, Hi, D], or [B, n, Hi, D] with n rows for each request; bf16, f16 or f32.
        k_cache: compressed keys in pages of any size, [P, ps, 1, D] or [P, ps, D], q's dtype.
        page_table: int32 [B, max_pages]; keys behind a page outside [0, P) are not seen.
        context_lens: int32 [B], keys (not tokens) that a request's rows see, or [B, n], one for each row.
        max_model_len: width of the result, in keys.
        score_scale: positive divisor of the scores; excludes scale.
        scale: positive factor; None: 1/sqrt(D).
        weights: f32 [B, Hi] or [B, n, Hi], a factor for each row and head; None: 1.
        out: f32 [B * n, max_model_len] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        f32 [B * n, max_model_len] of q's kind, -inf where a key is not seen.

    Raises:
        As `qsa_indexer_mqa_score`.

    Source: as `qsa_indexer_mqa_score`.
    """
    return _core.qsa_mqa_decode(
        q, k_cache, page_table, context_lens, max_model_len, score_scale, scale, weights, out, backend
    )


def qsa_select(
    q_idx: Array,
    block_keys: Array,
    *,
    budget: int = 2048,
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
    weights: Any = None,
    seq_lens_k: Any = None,
    screen: tuple[Array, Array] | None = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The K = budget // bs best blocks of every row by the scores of `qsa_indexer_mqa_score`, which are not stored.

    Higher scores first; equal ones, -0 and +0 among them, by lower id; NaN below every number. A row that sees no more
    than K blocks lists them all, and nothing is scored for it.

    Args:
        q_idx, block_keys: index queries and compressed keys in the forms of `qsa_indexer_mqa_score`.
        budget: tokens of the selected blocks, at least block_size.
        block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions, seq_lens_q, block_size, scale,
            score_scale, weights, seq_lens_k, backend: as in `qsa_indexer_mqa_score`.
        screen: codes int8 and scales f32 that `qsa_screen_keys` made of block_keys, kept beside them. Decode then reads
            only the keys that may be selected; the result has the same bits. Other numbers may lose blocks.
        out: int32 of the result's shape to write into and return; must not overlap an input. None: a new tensor.

    Returns:
        int32 [B, Q, K] or [R, K] of q_idx's kind: ascending ids within the request, left-packed, then -1.

    Raises:
        As `qsa_indexer_mqa_score`.

    Source: the selection of Qwen4-Exp (Qwen Sparse Attention): 512 blocks of 4 tokens.
    """
    return _core.qsa_select(
        q_idx, block_keys, budget, block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions,
        seq_lens_q, block_size, scale, score_scale, weights, seq_lens_k, screen, out, backend,
    )  # fmt: skip


def qsa_select_tokens(
    q_idx: Array,
    block_keys: Array,
    *,
    budget: int = 2048,
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
    weights: Any = None,
    seq_lens_k: Any = None,
    screen: tuple[Array, Array] | None = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The tokens of the blocks that `qsa_select` takes, and those of the row's incomplete last block, in one step.

    Args:
        q_idx, block_keys, budget, block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions,
            seq_lens_q, block_size, scale, score_scale, weights, seq_lens_k, screen, backend: as in `qsa_select`.
        out: int32 [B, Q, K * bs + bs - 1] or [R, ...] to write into and return; must not overlap an input. None: a new tensor.

    Returns:
        int32 [B, Q, K * bs + bs - 1] or [R, ...] of q_idx's kind: ascending token ids within the request up to the row's
        position, left-packed, then -1. Rows of no request, and those past seq_lens_q, have none.

    Raises:
        As `qsa_indexer_mqa_score`.

    Source: as `qsa_select`; the layout of its token lists, 2,051 wide.
    """
    return _core.qsa_select_tokens(
        q_idx, block_keys, budget, block_table, page_size, cu_seqlens_q, token_to_req, num_requests, query_positions,
        seq_lens_q, block_size, scale, score_scale, weights, seq_lens_k, screen, out, backend,
    )  # fmt: skip


def topk_blocks(scores: Array, k: int, *, out: Any = None, backend: str = "native") -> Array:
    """The k best blocks of every row of given scores, by the rule of `qsa_select`.

    Args:
        scores: f32 [..., N], one to five axes, any strides. -inf is a block that the row does not see, and is never
            listed; NaN is seen, and ranks below every number.
        k: the most blocks to list.
        out: int32 [..., k] to write into and return; must not overlap an input. None: a new tensor.
        backend: "native" or "reference".

    Returns:
        int32 [..., k] of scores' kind: ascending ids, left-packed, then -1.

    Raises:
        ValueError: shape, stride, device, k or option; TypeError: dtype or type of an argument.

    Source: the selection of Qwen4-Exp (Qwen Sparse Attention), apart from its scores.
    """
    return _core.topk_blocks(scores, k, out, backend)
