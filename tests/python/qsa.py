"""Calls of QSA's indexer in every form, and the formula of their scores."""

from __future__ import annotations

import numpy as np
from tensors import DTYPES


class Index:
    """Rows and keys of three requests as a batch; `packed` and `pages` give them in other forms."""

    def __init__(self, dtype="f32", rows=5, blocks=(40, 9, 33), heads=4, dim=16, block=4, seed=0):
        rng = np.random.default_rng(seed)
        self.blocks, self.block, self.dtype = blocks, block, dtype
        self.q = rng.standard_normal((len(blocks), rows, heads, dim), np.float32).astype(DTYPES[dtype])
        self.k = rng.standard_normal((len(blocks), max(blocks), dim), np.float32).astype(DTYPES[dtype])
        self.weights = rng.standard_normal((len(blocks), rows, heads)).astype(np.float32)
        self.lens = np.array([n * block + i for i, n in enumerate(blocks)], np.int32)
        self.positions = (self.lens[:, None] - rows + np.arange(rows)).astype(np.int32)

    @property
    def options(self):
        return {"query_positions": self.positions, "seq_lens_k": self.lens, "block_size": self.block}

    def packed(self):
        """Rows of the requests one after the other, and what they come with."""
        requests, rows = self.q.shape[:2]
        q = self.q.reshape(-1, *self.q.shape[2:])
        return q, self.options | {"query_positions": self.positions.reshape(-1),
                                  "cu_seqlens_q": np.arange(requests + 1, dtype=np.int32) * rows}  # fmt: skip

    def pages(self, size):
        """[P, size, 1, D] with NaN where no key lies, and the table."""
        rng = np.random.default_rng(size)
        counts = [-(-n // size) for n in self.blocks]
        order = list(rng.permutation(sum(counts) + 2))
        table = np.full((len(counts), max(counts) + 1), -1, np.int32)
        cache = np.full((len(order), size, 1, self.k.shape[2]), np.nan, self.k.dtype)
        for b, count in enumerate(counts):
            for i in range(count):
                table[b, i] = order.pop()
                rows = self.k[b, i * size : min((i + 1) * size, self.blocks[b])]
                cache[table[b, i], : rows.shape[0], 0] = rows
        return cache, table


def formula(q, keys, visible, weights=None, scale=None):
    """q [rows, Hi, D], keys [rows, N, D], visible [rows]: the scores in f64, and what their error is relative to."""
    q, keys = q.astype(np.float64), keys.astype(np.float64)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = np.ones(q.shape[:2]) if weights is None else weights.astype(np.float64)
    dots = np.einsum("rhd,rnd->rhn", q, keys)
    value = scale * np.einsum("rh,rhn->rn", weights, np.maximum(dots, 0))
    size = scale * np.einsum("rh,rhn->rn", np.abs(weights), np.einsum("rhd,rnd->rhn", np.abs(q), np.abs(keys)))
    return np.where(np.arange(keys.shape[1]) < np.asarray(visible)[:, None], value, -np.inf), size
