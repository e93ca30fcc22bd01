"""Where the attention of a dense layer lies: its probabilities, summed over blocks of keys."""

from __future__ import annotations

import math

import torch

_TILE = 1 << 22  # probabilities that exist at a time: 16 MiB


def block_mass(q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, block_size: int, scaling: float) -> torch.Tensor:
    """f32 [Hkv, R, N]: the mass of each block for each of some queries, the average of the heads that share a KV head.

    Args:
        q: f32 [Hq, R, D], rotated queries of the positions `rows`, int64 [R].
        k: f32 [Hkv, S, D], rotated keys; S is a multiple of block_size.
    """
    (heads, count, _), (kv_heads, keys, _) = q.shape, k.shape
    position = torch.arange(keys)
    parts = []
    for first in range(0, count, step := max(_TILE // (heads * keys), 1)):
        some = q[:, first : first + step].unflatten(0, (kv_heads, heads // kv_heads))
        scores = torch.einsum("ghrd,gsd->ghrs", some, k).mul_(scaling)
        scores.masked_fill_(position > rows[first : first + step, None], -math.inf)
        parts.append(scores.softmax(-1).mean(1).unflatten(-1, (-1, block_size)).sum(-1))
    return torch.cat(parts, dim=1)


def coarser(mass: torch.Tensor, times: int) -> torch.Tensor:
    """The mass of blocks that are `times` as long: [..., N] to [..., N / times]."""
    return mass.unflatten(-1, (-1, times)).sum(-1)
