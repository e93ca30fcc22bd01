"""Context-parallel attention: every rank has some of the pages of keys; partial results are merged in the order of ranks.

    mpirun -n 4 python examples/distributed/context_parallel.py
    torchrun --nproc-per-node 4 examples/distributed/context_parallel.py

Checks prefill and decode, for each way to own pages, against one process and double precision; then times the prefill: rank 0
alone, and all ranks with a thread each. With --memory 1 no rank ever has all keys, and what each needs is printed.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median

import ml_dtypes
import numpy as np
import tessera
from common import barrier, bits, check, join, leave, lists, one_thread, options, peak_mib, timed
from tessera.distributed import context_parallel, context_parallel_prefill, own_pages, own_slots

PAGE = 128
BF16 = ml_dtypes.bfloat16


def page(o, index, which):
    """Page `index` of the only request: the same on every rank, without any other page."""
    return np.random.default_rng((index, which)).standard_normal((o.heads_kv, PAGE, o.dim), np.float32).astype(BF16)


class Cache:
    """The pages of a rank, or of a process that is alone, and the table that names them."""

    def __init__(self, o, tokens, rank, size, ownership="striped", capacity=0):
        width = -(-max(tokens, capacity) // PAGE)
        room = np.array([width * PAGE], np.int32)
        owners = np.arange(width, dtype=np.int32)[None] * 3 % max(size - 1, 1) if ownership == "by_page" else None
        self.table, count = own_pages(
            room, width, page_size=PAGE, rank=rank, size=size, ownership=ownership, owners=owners
        )
        self.used = np.array([tokens], np.int32)
        self.k, self.v = (np.zeros((max(count, 1), o.heads_kv, PAGE, o.dim), BF16) for _ in "kv")
        for index in np.flatnonzero(self.table[0] >= 0):
            for which, pages in enumerate((self.k, self.v)):
                pages[self.table[0, index]] = page(o, int(index), which)

    def append(self, k, v):
        """One token: a copy for its owner, nothing for the others."""
        slots = own_slots(self.table, np.zeros(1, np.int32), self.used, page_size=PAGE)
        tessera.append_kv(k, v, slots, self.k, self.v)
        self.used = self.used + np.int32(1)

    def args(self):
        return self.k, self.v

    def options(self):
        return {"page_table": self.table, "seqused_k": self.used, "block_size": PAGE}

    def mib(self):
        return (self.k.nbytes + self.v.nbytes) / 2**20


def error_share(q, ids, whole, out, block_q):
    """The largest error against double precision, as a share of what one process may be off."""
    f32 = q.astype(np.float32)
    op = partial(tessera.block_sparse_gqa_prefill, backend="reference", block_q=block_q, **whole.options())
    want = op(f32, whole.k.astype(np.float32), whole.v.astype(np.float32), ids)
    spread = op(f32, whole.k.astype(np.float32), np.abs(whole.v.astype(np.float32)), ids)
    got = out.astype(np.float32)
    half_ulp = np.exp2(np.floor(np.log2(np.maximum(np.maximum(np.abs(want), np.abs(got)), 1e-30))) - 8)
    return float(np.max(np.abs(got - want) / (spread / 256 + half_ulp)))


def checks(o, group, rank, size) -> bool:
    tokens, rows = min(o.seq, 1000), 256
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, rows, o.heads_q, o.dim), np.float32).astype(BF16)
    step_q, step_k, step_v = (
        rng.standard_normal((3, 1, heads, o.dim), np.float32).astype(BF16)
        for heads in (o.heads_q, o.heads_kv, o.heads_kv)
    )
    blocks = -(-tokens // PAGE)
    ids = rng.integers(0, blocks, (1, -(-rows // PAGE), o.topk)).astype(np.int32)
    ids[0, 0] = 0  # ranks that do not have block 0 have no key for these rows
    good = True
    for ownership in ("contiguous", "striped", "by_page"):
        own = Cache(o, tokens, rank, size, ownership, tokens + 3)
        whole = Cache(o, tokens, 0, 1, capacity=tokens + 3)
        call = partial(context_parallel_prefill, q, *own.args(), ids, group=group, **own.options())
        out = call()
        share = error_share(q, ids, whole, out, PAGE)
        good &= check(rank, f"{ownership} pages: prefill within the bound, {share:.2f} of it", share <= 1)
        good &= check(rank, f"{ownership} pages: the same bits again", np.array_equal(bits(out), bits(call())))

        index = q[:, :, : o.heads_kv]  # selection, with the keys for index keys
        found = context_parallel(tessera.msa_select, index, own.k, topk=4, group=group, **own.options())
        same = np.array_equal(found, tessera.msa_select(index, whole.k, topk=4, **whole.options()))
        good &= check(rank, f"{ownership} pages: the blocks that one process selects", same)

        for i in range(3):  # decode: the token goes to the cache of its owner, then every rank asks for its row
            for cache in (own, whole):
                cache.append(step_k[i], step_v[i])
            newest = np.arange(-(-int(own.used[0]) // PAGE), dtype=np.int32)[-o.topk :][None, None]
            query = step_q[i][None]
            out = context_parallel_prefill(query, *own.args(), newest, block_q=1, group=group, **own.options())
            share = max(share, error_share(query, newest, whole, out, 1))
        good &= check(rank, f"{ownership} pages: decode within the bound, {share:.2f} of it", share <= 1)

    own = Cache(o, tokens, rank, size)
    bad = q.astype(np.float64) if rank == size - 1 else q
    try:
        context_parallel_prefill(bad, *own.args(), ids, group=group, **own.options())
        message = "nothing"
    except TypeError as error:
        message = str(error)
    named = f"rank {size - 1}: q is " in message if size > 1 else "q is " in message
    good &= check(rank, f"an argument that is bad on one rank is refused by all: {message}", named)
    try:
        context_parallel(tessera.merge_states, [], group=group)
        good &= check(rank, "an operator that cannot be shared is refused", False)
    except (ValueError, NotImplementedError):
        pass
    return good


def main() -> int:
    o = options(__doc__, seq=2048, heads_q=16, heads_kv=2, dim=128, topk=16, runs=3, memory=0, rows=0)
    group, rank, size = join(o.engine)
    one_thread()
    good = True if o.memory else checks(o, group, rank, size)

    rows = o.rows or o.seq
    rng = np.random.default_rng(1)
    q = np.empty((1, rows, o.heads_q, o.dim), BF16)
    for t in range(0, rows, 1024):
        q[:, t : t + 1024] = rng.standard_normal(q[:, t : t + 1024].shape, np.float32)
    ids = lists(rng, o.seq, PAGE, PAGE, o.topk)[:, -(-(o.seq - rows) // PAGE) :]
    out = np.empty_like(q)
    own = Cache(o, o.seq, rank, size)
    wait = partial(barrier, o.engine, group)
    shared = partial(context_parallel_prefill, q, *own.args(), ids, group=group, out=out, **own.options())
    if o.memory:
        before = peak_mib()
        shared()
        print(f"rank {rank} of {size}: keys and values {own.mib():.1f} MiB, peak {peak_mib():.0f} MiB, "
              f"{peak_mib() - before:.0f} MiB of it in the call", flush=True)  # fmt: skip
        leave(o.engine)
        return 0

    whole = Cache(o, o.seq, 0, 1) if rank == 0 else None
    alone = np.empty_like(q)
    ones, alls = [], []
    for _ in range(o.runs):  # in turn, so that both see the same machine
        one, _ = timed(1, wait, lambda: rank == 0 and tessera.block_sparse_gqa_prefill(
            q, *whole.args(), ids, out=alone, **whole.options()))  # fmt: skip
        several, _ = timed(1, wait, shared)
        ones += one
        alls += several
    if rank == 0:
        off = float(np.max(np.abs(out.astype(np.float32) - alone.astype(np.float32))))
        good &= check(rank, f"the timed call differs from one process by {off:.4f} at most", off < 0.05)
        one, several = median(ones), median(alls)
        print(f"{o.seq} tokens: 1 rank {one * 1e3:.1f} ms, {size} ranks {several * 1e3:.1f} ms, {one / several:.2f}x, "
              f"efficiency {one / several / size:.1%}; keys and values {whole.mib():.1f} MiB, {own.mib():.1f} MiB")  # fmt: skip
    leave(o.engine)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
