"""Calls of QSA's attention in every form, and what the definition gives for them."""

from __future__ import annotations

import numpy as np
from sequences import BAD_IDS, Requests
from tensors import DTYPES


class Tokens(Requests):
    """Packed rows over packed keys, a list of tokens per row; the methods give other forms of the same call."""

    def __init__(self, dtype="f32", width=24, seed=0, **sizes):
        super().__init__(dtype, seed=seed, **sizes)
        rng = np.random.default_rng(seed + 1)
        keys = np.repeat(self.keys, self.rows)[:, None]
        lists = rng.integers(0, keys, (keys.shape[0], width), dtype=np.int32)
        self.lists = np.where(rng.random(lists.shape) < 0.2, rng.choice(BAD_IDS, lists.shape), lists)
        self.request = np.repeat(np.arange(len(self.rows), dtype=np.int32), self.rows)
        self.positions = (np.array(self.keys) - self.cu_q[1:])[self.request] + np.arange(keys.shape[0])
        self.positions = self.positions.astype(np.int32)
        self.lens = np.array(self.keys, np.int32)
        self.gates = rng.standard_normal((*self.q.shape[:2], self.v.shape[2]), np.float32).astype(DTYPES[dtype])

    @property
    def inputs(self):
        return self.q, self.k, self.v, self.lists

    @property
    def options(self):
        return {"cu_seqlens_q": self.cu_q, "cu_seqlens_k": self.cu_k}

    def padded(self, packed, first, fill):
        """Packed rows as [B, most, ...]."""
        most = int(np.diff(first).max())
        batch = np.full((len(first) - 1, most, *packed.shape[1:]), fill, packed.dtype)
        for room, part in zip(batch, np.split(packed, first[1:-1]), strict=True):
            room[: len(part)] = part
        return batch

    def batch_keys(self):
        k, v = (self.padded(x, self.cu_k, np.nan) for x in (self.k, self.v))
        return (self.q, k, v, self.lists), {"cu_seqlens_q": self.cu_q, "seq_lens_k": self.lens}

    def batch(self):
        """[B, Q, ...], of which rows past seq_lens_q are nobody's."""
        _, k, v, _ = self.batch_keys()[0]
        q, lists = self.padded(self.q, self.cu_q, np.nan), self.padded(self.lists, self.cu_q, 0)
        return (q, k, v, lists), {"seq_lens_q": np.diff(self.cu_q), "seq_lens_k": self.lens}

    def unpadded(self, batch):
        return np.concatenate([np.asarray(x)[:n] for x, n in zip(batch, self.rows, strict=True)])

    def in_pages(self, size):
        k, v, tables = super().pages(size)
        options = {"cu_seqlens_q": self.cu_q, "block_table": tables["page_table"], "seq_lens_k": self.lens}
        return (self.q, k.swapaxes(1, 2), v.swapaxes(1, 2), self.lists), options

    def seen(self, row):
        """The tokens of its request that a row attends to, as often as it does."""
        ids = self.lists[row]
        return ids[(ids >= 0) & (ids <= self.positions[row]) & (ids < self.keys[self.request[row]])]

    def slots(self):
        """The same tokens as rows of the packed keys."""
        lists = np.full_like(self.lists, -1)
        for row, b in enumerate(self.request):
            ids = self.seen(row)
            lists[row, : ids.size] = self.cu_k[b] + ids
        return lists

    def truth(self, scale=None, gate=None):
        """out, lse and sum_j p_j |v_j| in double precision; of out and the sum, after the gate."""
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        group = q.shape[1] // k.shape[1]
        scale = q.shape[2] ** -0.5 if scale is None else scale
        out, spread = np.zeros((2, *q.shape[:2], v.shape[2]))
        lse = np.full(q.shape[:2], -np.inf)
        for row, h in np.ndindex(q.shape[:2]):
            at = self.cu_k[self.request[row]] + self.seen(row)
            if at.size == 0:
                continue
            scores = scale * k[at, h // group] @ q[row, h]
            lse[row, h] = scores.max() + np.log(np.exp(scores - scores.max()).sum())
            weights = np.exp(scores - lse[row, h])
            out[row, h], spread[row, h] = weights @ v[at, h // group], weights @ np.abs(v[at, h // group])
        if gate is not None:
            weight = 1 / (1 + np.exp(-gate.astype(np.float64).reshape(*out.shape[:2], -1)))
            out, spread = weight * out, weight * spread
        return out, lse, spread
