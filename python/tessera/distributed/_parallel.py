"""Operators by all ranks of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera import _core
from tessera._ops import block_sparse_gqa_prefill
from tessera.distributed._engines import engine_of


def q_parallel(op: Callable[..., Any], *args: Any, group: Any = None, **options: Any) -> Any:
    """`op(*args, **options)` by all ranks, each of which computes some of the rows.

    All ranks have all queries, keys and lists. Rows are shared out by the work of a causal block-sparse call, that is by
    the keys on their lists, in one run of rows for each rank. Then the ranks gather. The result has the same bits as that of
    one process, for any number of ranks, and a rank may have nothing to do.

    Args:
        op: `block_sparse_gqa_prefill`, `msa_sparse_attention`, `msa_sparse_decode_attention` or `qsa_sparse_attention`.
        args, options: op's own, the same on all ranks.
        group: a communicator of mpi4py, or a process group of torch.distributed; None: its default group.

    Returns:
        What op returns, whole, on every rank.

    Raises:
        What op raises, on all ranks: a failure of one is that of all, with a message that names the rank. ValueError also
        where the calls of the ranks differ. Where the engine fails, its own exception.

    Source: the query-parallel prefill of minimax-m3-msa-neuron-kernels.
    """
    return _core.parallel(False, engine_of(group), 0, op, args, options)


def context_parallel(
    op: Callable[..., Any], *args: Any, group: Any = None, exchange_bytes: int = 0, **options: Any
) -> Any:
    """`op(*args, **options)` by all ranks, each of which has some of the keys.

    Keys are in pages. A rank's caches hold its own pages alone, and its page table (op's `page_table` or `block_table`) has
    -1 for all others, as `own_pages` makes it; each page that holds keys is one rank's. Queries, lists and lengths are those
    of the whole: ids are global, and it is the table that says which of them are here. A rank attends over what it has and
    gets the partial results of its share of the rows from all others, which it merges in the order of ranks; then the ranks
    gather. So bits do not depend on which message comes first, and are the same on every run.

    Partial results travel in the dtype of the output, with an f32 LSE. With f32 queries over keys of 16 bits, which
    `block_sparse_gqa_prefill` and `msa_sparse_attention` take, they are f32.

    Args:
        op, args, options: as in `q_parallel`, with the rank's own caches and page table; also `msa_select` and `qsa_select`,
            `qsa_select_tokens`, over pages of whole blocks, which give the ids of one process.
        group: as in `q_parallel`.
        exchange_bytes: partial results that a rank makes before it sends them: what the call needs is four times that. Less
            means more calls of op, each of which packs keys of its own. 0: 64 MiB.

    Returns:
        What op returns, whole, on every rank. It differs from the result of one process by rounding.

    Raises:
        As `q_parallel`; ValueError also where a page is no rank's or two ranks'.

    Source: the context-parallel prefill of minimax-m3-msa-neuron-kernels.
    """
    return _core.parallel(True, engine_of(group), exchange_bytes, op, args, options)


def q_parallel_prefill(q: Any, k: Any, v: Any, kv_indices: Any, *, group: Any = None, **options: Any) -> Any:
    """`q_parallel` of `block_sparse_gqa_prefill`.

    Args:
        q, k, v, kv_indices, options: as in `block_sparse_gqa_prefill`.
        group: as in `q_parallel`.

    Returns:
        out, or (out, lse), as `block_sparse_gqa_prefill`.

    Raises: as `q_parallel`.
    """
    return q_parallel(block_sparse_gqa_prefill, q, k, v, kv_indices, group=group, **options)


def context_parallel_prefill(
    q: Any, k: Any, v: Any, kv_indices: Any, *, page_table: Any, seqused_k: Any, group: Any = None, **options: Any
) -> Any:
    """`context_parallel` of `block_sparse_gqa_prefill`.

    Args:
        q, kv_indices, seqused_k: as in `block_sparse_gqa_prefill`, of the whole.
        k, v: pages of this rank, [P, Hkv, ps, D] and [P, Hkv, ps, Dv].
        page_table: int32 [B, max_pages], -1 for the pages of other ranks.
        group, options: as in `context_parallel`.

    Returns:
        out, or (out, lse), as `block_sparse_gqa_prefill`.

    Raises: as `context_parallel`.
    """
    return context_parallel(
        block_sparse_gqa_prefill,
        q,
        k,
        v,
        kv_indices,
        page_table=page_table,
        seqused_k=seqused_k,
        group=group,
        **options,
    )
