"""Requests of different lengths in one call: their inputs in every form, and what the definition gives for them."""

from __future__ import annotations

import numpy as np
from tensors import DTYPES
from tessera.check.bounds import LOG_BOUND, out_share, share

BAD_IDS = np.array([-1, -(2**31), 2**31 - 1, 1000], np.int32)


class Requests:
    """Packed rows, keys and lists; `paged` gives the same keys in pages."""

    def __init__(
        self,
        dtype="f32",
        rows=(5, 0, 1, 19),
        keys=(40, 7, 33, 19),
        hkv=2,
        group=3,
        d=16,
        dv=8,
        block=8,
        width=4,
        seed=0,
    ):
        rng = np.random.default_rng(seed)
        self.rows, self.keys, self.block = rows, keys, block
        self.q, self.k, self.v = (
            rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])
            for shape in ((sum(rows), hkv * group, d), (sum(keys), hkv, d), (sum(keys), hkv, dv))
        )
        blocks = np.repeat([-(-n // block) for n in keys], rows)[:, None]
        ids = rng.integers(0, np.maximum(blocks, 1), (hkv, sum(rows), width), dtype=np.int32)
        self.ids = np.where(rng.random(ids.shape) < 0.2, rng.choice(BAD_IDS, ids.shape), ids)
        self.cu_q, self.cu_k = (np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (rows, keys))

    @property
    def inputs(self):
        return self.q, self.k, self.v, self.ids

    @property
    def packed(self):
        return {"cu_seqlens_q": self.cu_q, "cu_seqlens_k": self.cu_k, "block_size": self.block}

    def of(self, b: int):
        """q, k, v and lists of one request, in the form of block_sparse_gqa_prefill with block_q=1."""
        r, c = slice(*self.cu_q[b : b + 2]), slice(*self.cu_k[b : b + 2])
        return self.q[None, r], self.k[None, c], self.v[None, c], self.ids[None, :, r]

    def pages(self, size: int):
        """k and v in pages in random order, and the tables; slots without a key are NaN."""
        rng = np.random.default_rng(size)
        counts = [-(-n // size) for n in self.keys]
        order = rng.permutation(sum(counts) + 3).astype(np.int32)
        table = np.full((len(counts), max(counts) + 1), -1, np.int32)
        k, v = (np.full((order.size, x.shape[1], size, x.shape[2]), np.nan, x.dtype) for x in (self.k, self.v))
        for b, n in enumerate(self.keys):
            table[b, : counts[b]], order = order[: counts[b]], order[counts[b] :]
            for j in range(n):
                at = table[b, j // size], slice(None), j % size
                k[at], v[at] = self.k[self.cu_k[b] + j], self.v[self.cu_k[b] + j]
        return k, v, {"page_table": table, "seqused_k": np.array(self.keys, np.int32)}

    def paged(self, size: int):
        """The positional and the keyword arguments of msa_sparse_attention over pages."""
        k, v, tables = self.pages(size)
        return (self.q, k, v, self.ids), {"cu_seqlens_q": self.cu_q, "block_size": self.block, **tables}

    def truth(self, causal=True, scale=None, offset=None):
        """out, lse and sum_j p_j |v_j| in double precision, row by row as the definition reads."""
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        group = q.shape[1] // k.shape[1]
        scale = q.shape[2] ** -0.5 if scale is None else scale
        out, spread = np.zeros((2, *q.shape[:2], v.shape[2]))
        lse = np.full(q.shape[:2], -np.inf)
        for b, (rows, keys) in enumerate(zip(self.rows, self.keys, strict=True)):
            first = keys - rows if offset is None else np.broadcast_to(offset, len(self.rows))[b]
            for t, h in np.ndindex(rows, q.shape[1]):
                row = self.cu_q[b] + t
                seen = np.isin(np.arange(keys) // self.block, self.ids[h // group, row])
                if causal:
                    seen &= np.arange(keys) <= first + t
                if not seen.any():
                    continue
                at = self.cu_k[b] + np.flatnonzero(seen)
                s = scale * k[at, h // group] @ q[row, h]
                p = np.exp(s - s.max())
                lse[row, h] = s.max() + np.log(p.sum())
                p /= p.sum()
                out[row, h], spread[row, h] = p @ v[at, h // group], p @ np.abs(v[at, h // group])
        return out, lse, spread


def within_bounds(got, truth, dtype) -> bool:
    (out, lse), (want, want_lse, spread) = got, truth
    return out_share(out, want, spread, dtype) < 1 and share(lse, want_lse, LOG_BOUND[dtype]) < 1
