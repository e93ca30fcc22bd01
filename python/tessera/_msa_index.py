"""The indexer of MSA: which blocks of keys each row is to attend to, by the scores of trained index heads.

Letters: B requests, R rows of all requests, Hi index heads, D their dimension, Hk index key heads (1, shared by all index
heads, or Hi), N blocks of the request with the most keys, K selected blocks, P pages of ps slots.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import _core

Array = TypeVar("Array")


def msa_block_scores(
    q: Array,
    k: Array,
    *,
    block_size: int = 128,
    q_offset: Any = None,
    reduce_heads: bool = False,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The score of every block for every row and index head: the largest q . k of the block's visible keys.

    A key is visible to the rows at its position and after it. Scores are f32 and not scaled, for a positive scale
    changes no selection; -inf where no key of the block is visible; NaN where a visible key gives NaN. To select blocks,
    `msa_select` needs no memory for the scores.

    Rows are a batch, or those of all requests one after the other (`cu_seqlens_q`). So are keys (`cu_seqlens_k`), which
    may also lie in pages (`page_table` and `seqused_k`): key j of request b is slot j % ps of page
    page_table[b, j // ps]. The same rows and keys give the same bits in any of these forms, whatever else is in the call
    and for any number of threads.

    Args:
        q: index queries [B, Sq, Hi, D], or packed [R, Hi, D]; bf16, f16 or f32. Any strides with a unit stride along D;
            likewise k.
        k: index keys [B, Sk, Hk, D], packed [total_k, Hk, D], or in pages [P, Hk, ps, D], or those in the packed layout
            of `append_kv`; q's dtype.
        block_size: tokens per block; blocks start at the request's first key.
        q_offset: position of each request's first row among its keys, an int or int32 [B], may be negative; None: its
            keys - its rows, so that the last row meets the last key.
        reduce_heads: the maximum over the index heads, one result for all of them. The selection of a model that was
            trained with a list per head is another one.
        cu_seqlens_q: int32 [B + 1], for packed rows: rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]) are request b's. A
            request whose rows would lie outside q or overlap an earlier one's is empty.
        cu_seqlens_k: int32 [B + 1], likewise for packed keys; excludes page_table and seqused_k.
        page_table: int32 [B, max_pages]; keys behind a page outside [0, P) are absent. Entries past a request's last
            page are not read.
        seqused_k: int32 [B], keys of each request, cut to max_pages * ps; goes with page_table.
        out: f32 of the result's axes and any N to write into and return; must not overlap an input. Blocks past N are not
            written. None: a new tensor, for which the lengths of the requests are read.
        backend: "native", or "reference" (plain double precision, one thread, slow).

    Returns:
        f32 [B, Hi, Sq, N] or [Hi, R, N] of q's kind, with one head if reduce_heads. Blocks past a row's own request, and
        rows of no request, are -inf.

    Raises:
        ValueError: shape, stride, device or option, or not exactly one form of keys; TypeError: dtype or type of an
        argument; NotImplementedError: valid, but not supported.

    Source: the indexer of MiniMax-M3 (MSA, arXiv:2606.13392): one index head per KV head, one shared key head.
    """
    return _core.msa_block_scores(
        q, k, block_size, q_offset, reduce_heads, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k,
        out, backend,
    )  # fmt: skip


def msa_select(
    q: Array,
    k: Array,
    *,
    topk: int = 16,
    local_blocks: int = 1,
    init_blocks: int = 0,
    block_size: int = 128,
    q_offset: Any = None,
    reduce_heads: bool = False,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    page_table: Any = None,
    seqused_k: Any = None,
    out: Any = None,
    backend: str = "native",
) -> Array:
    """The topk best blocks of every row and index head by the scores of `msa_block_scores`.

    The `local_blocks` blocks up to and including the row's own and the first `init_blocks` are in whatever their score;
    then higher score first, equal scores (-0 and +0 are) by lower id, NaN last. Visible is a block that begins at or
    before the row's position and before the request's keys end. Rows with no more than topk visible blocks list them all
    and are not scored. Working memory: the scores of a tile of rows per thread, at most 8 MiB (or one row's, if that is
    more), whatever the number of rows; a call of few tiles that is cut along the keys keeps those of all of them, 16 MiB at
    most.

    Args:
        q, k: index queries and keys in the forms of `msa_block_scores`.
        topk: K, the number of blocks to select, the forced ones included.
        local_blocks: blocks that end with the row's own and are always in.
        init_blocks: blocks at the start that are always in.
        block_size, q_offset, reduce_heads, cu_seqlens_q, cu_seqlens_k, page_table, seqused_k, backend: as in
            `msa_block_scores`.
        out: int32 of the result's shape to write into and return; must not overlap an input. None: a new tensor.

    Returns:
        int32 [B, Hi, Sq, K] or [Hi, R, K] of q's kind, with one head if reduce_heads: ascending ids, left-packed, then
        -1. [Hi, R, K] is the `q2k_indices` of `msa_sparse_attention` with one index head per KV head.

    Raises: as `msa_block_scores`; ValueError also for more forced blocks than topk.

    Source: the selection of MiniMax-M3 (MSA, arXiv:2606.13392), whose blocks have 128 tokens, and which takes 16 of them,
    the row's own always.
    """
    return _core.msa_select(
        q, k, topk, local_blocks, init_blocks, block_size, q_offset, reduce_heads, cu_seqlens_q, cu_seqlens_k,
        page_table, seqused_k, out, backend,
    )  # fmt: skip
