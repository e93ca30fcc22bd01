"""A selection against the truth: exact as a set, but for blocks whose score is too near the score at the cut to tell.

Scores are recomputed here in NumPy, since the operators give ids alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SCORE_BOUND = 1e-4  # of a score, relative to its magnitude
INVISIBLE, BY_SCORE, OWN, FORCED = range(4)


@dataclass
class Scores:
    """Of all blocks, for the list of one query block and KV head."""

    tier: np.ndarray  # higher tiers are preferred whatever the score
    value: np.ndarray
    magnitude: np.ndarray  # what the error of a value is relative to

    def share(self, got: np.ndarray, want: np.ndarray) -> float:
        """How far the score of a wrongly chosen or left out block is from the cut, as a share of what may be confused."""
        taken = got[got >= 0]
        packed = got[: taken.size]
        if (packed < 0).any() or (np.diff(packed) <= 0).any() or (taken >= self.tier.size).any():
            return np.inf
        wrong = np.setxor1d(taken, want[want >= 0])
        if wrong.size == 0:
            return 0.0
        if taken.size != (want >= 0).sum():
            return np.inf
        chosen = want[want >= 0]
        lowest = chosen[self.tier[chosen] == self.tier[chosen].min()]
        cut = lowest[np.argmin(np.nan_to_num(self.value[lowest], nan=-np.inf))]
        if (self.tier[wrong] != self.tier[cut]).any():
            return np.inf
        bound = SCORE_BOUND * (self.magnitude[wrong] + self.magnitude[cut])
        gap = np.abs(self.value[wrong] - self.value[cut])
        return float(np.nan_to_num(gap / bound, nan=np.inf).max())


def tiers(position: np.ndarray, blocks: int, block: int, local_blocks: int, init_blocks: int) -> np.ndarray:
    """position: of each row of the query block."""
    n = np.arange(blocks)
    last = position[-1]
    tier = np.full(blocks, BY_SCORE)
    if local_blocks >= 1:
        tier[(n + 1) * block > position[0]] = OWN
    tier[(n < init_blocks) | (n > last // block - local_blocks)] = FORCED
    tier[n * block > last] = INVISIBLE
    return tier


def moba_scores(q: np.ndarray, k: np.ndarray, position: np.ndarray, **o: Any) -> Scores:
    """q: [rows, G, D] of one query block and KV head; k: [Sk, D]; o: block_size, local_blocks, init_blocks."""
    block = o["block_size"]
    starts = np.arange(0, k.shape[0], block)
    sizes = np.minimum(block, k.shape[0] - starts)[:, None]
    rows = q[position >= 0].reshape(-1, q.shape[-1])
    value = np.add.reduceat(k, starts) / sizes @ rows.T
    magnitude = np.add.reduceat(np.abs(k), starts) / sizes @ np.abs(rows).T
    tier = tiers(position, starts.size, block, o["local_blocks"], o["init_blocks"])
    pairs = max(rows.shape[0], 1)
    return Scores(tier, value.sum(axis=1) / pairs, magnitude.sum(axis=1) / pairs)


def mass_scores(q: np.ndarray, k: np.ndarray, position: np.ndarray, **o: Any) -> Scores:
    """As `moba_scores`, with stride and softmax_scale."""
    block = o["block_size"]
    starts = np.arange(0, k.shape[0], block)
    rows = np.union1d(np.arange(0, position.size, o["stride"]), [position.size - 1])
    rows = rows[position[rows] >= 0]
    scale = q.shape[-1] ** -0.5 if o["softmax_scale"] is None else o["softmax_scale"]
    s = scale * q[rows] @ k.T  # [rows, G, Sk]
    reach = abs(scale) * np.abs(q[rows]) @ np.abs(k).T
    seen = (np.arange(k.shape[0]) <= position[rows, None])[:, None]
    s = np.where(seen, s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    p = p / p.sum(axis=-1, keepdims=True)
    reach = np.where(seen, reach, 0).max(axis=-1, keepdims=True, initial=0.0)
    tier = tiers(position, starts.size, block, o["local_blocks"], o["init_blocks"])
    value = np.add.reduceat(p, starts, axis=-1).sum(axis=(0, 1))
    # An error e of the scores changes p by a factor of up to exp(2 e).
    magnitude = np.add.reduceat(p * np.maximum(1.0, 2 * reach), starts, axis=-1).sum(axis=(0, 1))
    return Scores(tier, value, magnitude)


SCORES = {"moba_select": moba_scores, "mass_select": mass_scores}


def selection_share(
    operator: str, got: np.ndarray, want: np.ndarray, q: np.ndarray, k: np.ndarray, offset: np.ndarray, **o: Any
) -> float:
    """Over all lists of a call. got, want: int32 [B, Hkv, nQ, K]; offset: position of the first query of each request."""
    kv_heads = k.shape[2]
    group = q.shape[2] // kv_heads
    worst = 0.0
    for b, head, n in np.ndindex(got.shape[:3]):
        if np.array_equal(got[b, head, n], want[b, head, n]):
            continue
        rows = slice(n * o["block_q"], min((n + 1) * o["block_q"], q.shape[1]))
        position = np.arange(rows.start, rows.stop) + offset[b]
        scores = SCORES[operator](
            q[b, rows, head * group : (head + 1) * group].astype(np.float64),
            k[b, :, head].astype(np.float64),
            position,
            **o,
        )
        worst = max(worst, scores.share(got[b, head, n], want[b, head, n]))
    return worst
