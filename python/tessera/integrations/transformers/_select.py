"""Lists of key blocks for a span: int32 [B, Hkv, nQ, W], ids from the first key of the span, -1 where unused."""

from __future__ import annotations

from functools import lru_cache

import torch

import tessera
from tessera.integrations.transformers._options import Options


@lru_cache(maxsize=16)
def every_block(requests: int, blocks: int) -> torch.Tensor:
    """One list with all blocks for all queries and heads: [B, 1, N]. Layers and steps share it."""
    return torch.arange(blocks, dtype=torch.int32).expand(requests, 1, blocks)


def select(options: Options, q: torch.Tensor, k: torch.Tensor, scaling: float | None, layer: int) -> torch.Tensor:
    """q [B, Sq, Hq, D] against k [B, Sk, Hkv, D], the last query meeting the last key. More than K blocks are visible."""
    if options.selector == "mass":
        return tessera.mass_select(
            q,
            k,
            topk=options.blocks,
            block_size=options.block_size,
            block_q=options.block_q,
            stride=options.stride,
            local_blocks=options.local_blocks,
            init_blocks=options.init_blocks,
            softmax_scale=scaling,
        )
    if options.selector == "moba":
        return tessera.moba_select(
            q,
            k,
            topk=options.blocks,
            block_size=options.block_size,
            block_q=options.block_q,
            local_blocks=options.local_blocks,
            init_blocks=options.init_blocks,
        )
    requests, queries, keys, kv_heads = *q.shape[:2], *k.shape[1:3]
    first, last = _own_blocks(options, queries, keys)
    if options.selector == "window":
        return _window(options, last).expand(requests, kv_heads, -1, -1)
    return _random(options, first, last, (requests, kv_heads), layer)


def _own_blocks(options: Options, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks that the first and the last query of each query block are in, [nQ]."""
    first = torch.arange(0, queries, options.block_q)
    last = (first + options.block_q - 1).clamp(max=queries - 1)
    offset = keys - queries
    return (first + offset) // options.block_size, (last + offset) // options.block_size


def _window(options: Options, last: torch.Tensor) -> torch.Tensor:
    """[nQ, K]: the first blocks, then the last ones up to the last query's own."""
    recent = last[:, None] - torch.arange(options.blocks - options.init_blocks - 1, -1, -1)
    recent[recent < options.init_blocks] = -1
    start = torch.arange(options.init_blocks).expand(len(last), -1)
    return torch.cat([start, recent], dim=1).to(torch.int32)


def _random(
    options: Options, first: torch.Tensor, last: torch.Tensor, heads: tuple[int, int], layer: int
) -> torch.Tensor:
    """The first blocks, the last `local_blocks`, the queries' own, and others at random; the same for the same call."""
    block = torch.arange(int(last[-1]) + 1)
    dice = torch.Generator().manual_seed(hash((options.seed, layer, len(block))) % 2**63)
    score = torch.rand(*heads, len(last), len(block), generator=dice)
    own = (block >= first[:, None]) | (block > last[:, None] - options.local_blocks)
    score = score.masked_fill(own | (block < options.init_blocks), 2).masked_fill(block > last[:, None], -1)
    best, ids = score.topk(min(options.blocks, len(block)), dim=-1)
    return ids.masked_fill(best < 0, -1).to(torch.int32)
