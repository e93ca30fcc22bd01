"""Query-parallel attention: every rank has all keys and computes some of the rows; the same bits as one process.

    mpirun -n 4 python examples/distributed/q_parallel.py
    torchrun --nproc-per-node 4 examples/distributed/q_parallel.py

Checks three operators against one process, then times the first: rank 0 alone, and all ranks with a thread each.
"""

from __future__ import annotations

import sys
from statistics import median

import ml_dtypes
import numpy as np
import tessera
from common import barrier, bits, check, join, leave, lists, one_thread, options, timed
from tessera.distributed import q_parallel, q_parallel_prefill

BLOCK = 128


def inputs(o, tokens):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, tokens, o.heads_q, o.dim), np.float32).astype(ml_dtypes.bfloat16)
    k, v = (rng.standard_normal((1, tokens, o.heads_kv, o.dim), np.float32).astype(ml_dtypes.bfloat16) for _ in "kv")
    return rng, q, k, v


def checks(o, group, rank) -> bool:
    """Ragged batches, and requests without rows, on fewer tokens than are timed."""
    tokens = min(o.seq, 1024)
    rng, q, k, v = inputs(o, tokens)
    good = True

    prefill = (q, k, v, lists(rng, tokens, BLOCK, BLOCK, o.topk))
    alone = tessera.block_sparse_gqa_prefill(*prefill, return_lse=True)
    shared = q_parallel_prefill(*prefill, group=group, return_lse=True)
    same = all(np.array_equal(bits(a), bits(b)) for a, b in zip(alone, shared, strict=True))
    good &= check(rank, "a list per query block has the bits of one process", same)

    bounds = np.array([0, 3, 3, tokens // 2, tokens], np.int32)
    per_token = rng.integers(-1, 4, (o.heads_kv, tokens, o.topk)).astype(np.int32)
    msa = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    alone = tessera.msa_sparse_attention(q[0], k[0], v[0], per_token, **msa)
    shared = q_parallel(tessera.msa_sparse_attention, q[0], k[0], v[0], per_token, group=group, **msa)
    good &= check(
        rank, "a list per token and KV head has the bits of one process", np.array_equal(bits(alone), bits(shared))
    )

    tokens_of = np.sort(rng.integers(-1, tokens, (1, tokens, 4 * o.topk)).astype(np.int32), axis=-1)
    alone = tessera.qsa_sparse_attention(q, k, v, tokens_of)
    shared = q_parallel(tessera.qsa_sparse_attention, q, k, v, tokens_of, group=group)
    good &= check(
        rank, "a list of tokens per row has the bits of one process", np.array_equal(bits(alone), bits(shared))
    )
    return good


def main() -> int:
    o = options(__doc__, seq=2048, heads_q=16, heads_kv=2, dim=128, topk=16, runs=3)
    group, rank, size = join(o.engine)
    one_thread()
    good = checks(o, group, rank)

    rng, q, k, v = inputs(o, o.seq)
    call = (q, k, v, lists(rng, o.seq, BLOCK, BLOCK, o.topk))
    out, whole = np.empty_like(q), np.empty_like(q)
    ones, alls = [], []
    for _ in range(o.runs):  # in turn, so that both see the same machine
        one, _ = timed(1, lambda: barrier(o.engine, group),
                       lambda: rank == 0 and tessera.block_sparse_gqa_prefill(*call, out=whole))  # fmt: skip
        several, _ = timed(1, lambda: barrier(o.engine, group), lambda: q_parallel_prefill(*call, group=group, out=out))
        ones += one
        alls += several
    if rank == 0:
        good &= check(rank, "the timed call has the bits of one process", np.array_equal(bits(out), bits(whole)))
        one, several = median(ones), median(alls)
        print(f"{o.seq} tokens: 1 rank {one * 1e3:.1f} ms, {size} ranks {several * 1e3:.1f} ms, {one / several:.2f}x, "
              f"efficiency {one / several / size:.1%}")  # fmt: skip
    leave(o.engine)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
