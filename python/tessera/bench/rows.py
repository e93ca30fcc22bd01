"""What the cases with a list per row and KV head share."""

from __future__ import annotations

import numpy as np

from tessera.check.bounds import AttentionTruth


def row_lists(
    rng: np.random.Generator, positions: np.ndarray, heads: int, block: int, topk: int, overlap: float
) -> np.ndarray:
    """int32 [heads, rows, topk], ascending and then -1: what an indexer gives to rows that follow each other.

    A list holds the row's own block and others at random from before it, so many of them from the list of the row before
    that the share `overlap` of a list is kept.
    """
    lists = np.full((heads, positions.size, topk), -1, np.int32)
    keep = max(0, round(overlap * topk) - 1)
    for head in range(heads):
        before = np.empty(0, np.int32)  # all but the own block of the row before
        for row, own in enumerate(positions // block):
            if own < topk:
                before = np.arange(own, dtype=np.int32)
            else:
                kept = before[rng.permutation(before.size)[:keep]]
                free = np.ones(own, bool)
                free[before] = False  # with overlap 0 nothing of it comes back, if there is enough else
                fresh = np.flatnonzero(free)
                if fresh.size < topk - 1 - kept.size:
                    free[before] = True
                    free[kept] = False
                    fresh = np.flatnonzero(free)
                fresh = rng.choice(fresh, topk - 1 - kept.size, replace=False)
                before = np.sort(np.concatenate([kept, fresh])).astype(np.int32)
            lists[head, row, : before.size] = before
            lists[head, row, before.size] = own
    return lists


def visible_pairs(lists: np.ndarray, positions: np.ndarray, block: int) -> int:
    """(row, selected visible key) pairs of all KV heads."""
    seen = np.clip(positions[:, None] + 1 - lists.astype(np.int64) * block, 0, block)
    return int(np.where(lists >= 0, seen, 0).sum())


def selected_keys(ids: np.ndarray, position: int, block: int) -> np.ndarray:
    """The keys that a row sees of its list, ascending."""
    keys = (np.sort(ids[ids >= 0])[:, None] * block + np.arange(block)).reshape(-1)
    return keys[keys <= position]


def row_share(out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: str) -> float:
    """The error of one row and KV head as a share of its bound. out: [G, Dv]; q: [G, D]; k, v: the keys it attends to."""
    every = np.zeros((1, 1, 1), np.int32)
    truth = AttentionTruth(
        q[None, None], k[None, :, None], v[None, :, None], every, block_size=k.shape[0], block_q=1, causal=False
    )
    return truth.out_share(out[None, None], dtype)
